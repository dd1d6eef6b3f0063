"""Moves of chain solvers, block by block, and the operations that they run.

A solver gives a list of moves; `sequence` turns them into runs of operations. The symbols are those of
Beaumont et al., "Optimal checkpointing for heterogeneous chains" (Inria RR-9302, 2019):

    F_∅, F_ck   (ADVANCE, b)    forward of block b that makes its output alone; whether its input stays
                                follows from later moves: a tensor stays until its last use
    F_all       (SAVE, b)       forward of block b that makes all that its backward reads
    B           (BACKWARD, b)   backward of block b

A block's first pass also runs what must run then: producers of shared tensors, random operations (first runs
keep the traced order), what nothing reads. Later passes leave out the producers of shared tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum

from ...graphs.graph import Graph
from ...graphs.structure.chain import Chain
from ...planner.schedule.schedule import DEFAULT_MODE
from ...planner.schedule.sequence import Run, in_default_mode


class Pass(IntEnum):
    ADVANCE = 0
    SAVE = 1
    BACKWARD = 2


Move = tuple[Pass, int]
"""Kind of pass, and the block's number from 0."""


@dataclass(frozen=True)
class BlockRuns:
    """The runs of a block's passes.

    saved: the tensors that a SAVE leaves, its output included.
    turn: the part of `save` that its own backward, right after it, needs.
    """

    first_advance: list[Run]
    advance: list[Run]
    first_save: list[Run]
    save: list[Run]
    turn: list[Run]
    backward: list[Run]
    saved: frozenset[int]


def block_runs(graph: Graph, chain: Chain) -> list[BlockRuns]:
    last = last_reader(graph, chain)
    return [_runs_of(graph, chain, number, last) for number in range(len(chain.blocks))]


def last_reader(graph: Graph, chain: Chain) -> dict[int, int]:
    """Return tensor -> the last block whose backward reads it.

    It is -1 if the tensor is read after all blocks, or is a result.
    """
    last: dict[int, int] = {}
    for number in reversed(range(len(chain.blocks))):
        for operation in chain.blocks[number].backward:
            # From the last block down: the lowest number, whose backward runs last, overwrites.
            last.update(dict.fromkeys(graph.input_lists[operation], number))
    later = [x for o in chain.after for x in graph.input_lists[o]]
    return last | dict.fromkeys([*later, *graph.results], -1)


def sequence(chain: Chain, runs: Sequence[BlockRuns], moves: Iterable[Move]) -> list[Run]:
    """Return all runs of the iteration."""
    ran = [False] * len(runs)
    result: list[Run] = []
    for kind, number in moves:
        block = runs[number]
        if kind == Pass.BACKWARD:
            result += block.backward
        elif kind == Pass.ADVANCE:
            result += block.advance if ran[number] else block.first_advance
        else:
            result += block.save if ran[number] else block.first_save
        ran[number] = True
    return result + in_default_mode(chain.after)


def save_all(blocks: int) -> list[Move]:
    """Return the moves that recompute nothing: every block once."""
    forward = [(Pass.SAVE, b) for b in range(blocks)]
    return forward + [(Pass.BACKWARD, b) for b in reversed(range(blocks))]


def _runs_of(graph: Graph, chain: Chain, number: int, last: dict[int, int]) -> BlockRuns:
    block = chain.blocks[number]
    made = {x for o in block.forward for x, _bit in graph.contributions(o)} - chain.shared
    output = set[int]() if block.output is None else {block.output}
    saved = {x for x in made if x in last} | output
    there = chain.shared  # made once, by the first pass, and kept
    save = producers(graph, block.forward, saved, there)
    # The output only if a backward part from here on reads it: later blocks have had it.
    turn = producers(graph, block.forward, {x for x in made if last.get(x, number + 1) <= number}, there)
    advance = producers(graph, block.forward, output, there)
    # Random ones too: a first draw out of order would change the generator's later ones.
    at_first = {o for o in block.forward if o not in save or graph.operations.random[o]}
    first_advance = producers(graph, block.forward, output | chain.shared, there, at_first)
    return BlockRuns(
        first_advance=[(o, lightest_mode(graph, o, wanted)) for o, wanted in first_advance.items()],
        advance=[(o, lightest_mode(graph, o, wanted)) for o, wanted in advance.items()],
        first_save=in_default_mode(block.forward),
        save=in_default_mode(save),
        turn=in_default_mode(turn),
        backward=in_default_mode(block.backward),
        saved=frozenset(saved),
    )


def producers(
    graph: Graph,
    operations: Sequence[int],
    targets: AbstractSet[int],
    there: AbstractSet[int],
    always: AbstractSet[int] = frozenset(),
) -> dict[int, set[int]]:
    """Select the operations that `targets` need, those of `always`, and what these need, in running order.

    Returns operation -> the tensors that are requested of it.

    operations: to choose from, in running order.
    there: tensors that need not be made for another operation.
    """
    need = set(targets)
    found: dict[int, set[int]] = {}
    for operation in reversed(operations):
        wanted = {x for x, _bit in graph.contributions(operation) if x in need}
        if wanted or operation in always:
            found[operation] = wanted
            # Inputs made outside `operations` stay in `need`, which harms nothing: no producer is found.
            need.update(x for x in graph.input_lists[operation] if x not in there)
    return dict(reversed(found.items()))


def lightest_mode(graph: Graph, operation: int, wanted: AbstractSet[int]) -> int:
    """Return the execution variant that writes the fewest bytes and makes what is requested.

    Only variants on the device that are no slower than the baseline variant count.
    """
    columns = graph.operations
    best, least = (
        DEFAULT_MODE,
        # Bytes that exist while it runs, without its inputs.
        int(columns.workspace[operation] + graph.tensors.bytes[columns.writes[operation]].sum()),
    )
    for number, mode in enumerate(columns.modes.get(operation, ()), start=1):
        size = mode.workspace + int(graph.tensors.bytes[list(mode.writes)].sum())
        if (
            not mode.uses_host
            and wanted <= set(mode.writes)
            and mode.time <= columns.time[operation]
            and size < least
        ):
            best, least = number, size
    return best
