"""The runs of an iteration, layer by layer: every layer once, or again from its input; updates early."""

from __future__ import annotations

from ....planner.schedule.sequence import Run
from ...chains.runs import Move, Pass, block_runs, save_all, sequence
from .early_updates import early_updates
from .training import TrainingLayers


def iteration_runs(found: TrainingLayers, *, checkpoint: bool) -> list[Run]:
    """checkpoint: of each layer but the last only the output is kept, its forward runs again before its
    backward; else nothing is made twice."""
    count = len(found.layers)
    moves: list[Move] = save_all(count)
    if checkpoint:
        moves = [(Pass.ADVANCE, number) for number in range(count - 1)]
        for number in reversed(range(count)):
            moves += [(Pass.SAVE, number), (Pass.BACKWARD, number)]
    runs = sequence(found.chain, block_runs(found.graph, found.chain), moves)
    return early_updates(found.graph, runs)
