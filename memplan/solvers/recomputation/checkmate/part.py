"""A subgraph of a training graph as a separate training graph, for Rk-Checkmate.

    inputs ─▶ forward ─▶ outputs ─▶ loss ─▶ gradients from later ─▶ backward ─▶ results

The loss stands for all that runs between the subgraph's two halves: it takes no time and runs once. What
comes from outside is an input, resident all the time and free, but for what the loss makes. Linear in the
edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....graphs.draft import Draft
from ....graphs.graph import Graph, Operation, Phase
from ....planner.schedule.sequence import Run, in_default_mode


class Loss(NamedTuple):
    """Tensors of the part's graph."""

    reads: Sequence[int]
    writes: Sequence[int] = ()


@dataclass(frozen=True)
class PartGraph:
    """A subgraph as a training graph.

    operations: per operation of `graph`, its number in the subgraph; None for the loss that was put in.
    turn: the first operation after the forward half.
    """

    graph: Graph
    operations: tuple[int | None, ...]
    turn: int

    def halves(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Split a sequence in stages into the runs up to the loss and those after it.

        The result has the subgraph's numbers.
        """
        # In stages the first run from `turn` on is the loss, or the first backward operation.
        at = next((at for at, (operation, _mode) in enumerate(runs) if operation >= self.turn), len(runs))
        return self._in_part(runs[:at]), self._in_part(runs[at:])

    def sequence(self, backward: Iterable[Run]) -> list[Run]:
        """Return the runs of all up to the loss, then these of the subgraph. The inverse of `halves`."""
        number = {operation: o for o, operation in enumerate(self.operations)}
        # With the loss that was put in, which `backward` doesn't name.
        ahead = range(self.turn + (None in number))
        return in_default_mode(ahead) + [(number[operation], mode) for operation, mode in backward]

    def _in_part(self, runs: Iterable[Run]) -> list[Run]:
        numbered = ((self.operations[o], mode) for o, mode in runs)
        return [(operation, mode) for operation, mode in numbered if operation is not None]


Rows = Sequence[tuple[int, Operation]]
"""Operations by their number in the part."""


def part_graph(
    draft: Draft, forward: Rows, loss: Loss | None, backward: Rows, results: Sequence[int]
) -> PartGraph:
    """Build the training graph of a subgraph.

    draft: with all tensors, which the rows name.
    loss: None if the subgraph has its own.
    """
    for _number, row in forward:
        draft.operation(**row._asdict())
    if loss:
        # Not to be recomputed: it stands for all that runs in between.
        draft.operation(
            "loss", time=0.0, reads=loss.reads, writes=loss.writes, phase=Phase.LOSS, recompute=False
        )
    for _number, row in backward:
        draft.operation(**row._asdict())
    numbers = [*(o for o, _row in forward), *([None] if loss else []), *(o for o, _row in backward)]
    return PartGraph(draft.graph(results), tuple(numbers), len(forward))
