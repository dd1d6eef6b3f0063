"""The swapped blocks of lists of blocks, as a residency.

    m = N - n slots       step   0    1    2  … N-1 │  N  … N+1  N+2 … 2N-1
    (m = 2, n = N - 2)    runs   F0   F1   F2       │ BN-1   …           B0
                          there  01   12   23 …     │ …                  01

While a block runs, the m - 1 blocks after it are there, or on their way: the last of them is fetched once the
block before has run, into the slot that this one has left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run, in_default_mode, prune
from ...problem import NotAcceptedError
from ...recomputation.checkpointing.layer_checkpoint import numbered, runs
from ..layers.offload_intervals import Positions, uses_of
from ..layers.windows import entered

WAYS = ("keep", "checkpoint")
"""Treatments of activations: kept, or a checkpoint around each block."""


@dataclass(frozen=True)
class BlockLists:
    """The runs of an iteration, and the model's lists of blocks with frozen weights.

    activations: of WAYS. runs: in traced order, with checkpoints or without.
    lists: per list of blocks, like `transformer_blocks`, the frozen weights of each block, in forward order.
    uses: per weight the positions of its runs.
    backward: the position at which backward, or the first recomputation, begins.
    """

    activations: str
    runs: list[Run]
    lists: Mapping[str, Sequence[Sequence[int]]]
    uses: Positions
    backward: int

    @property
    def most(self) -> int:
        """Return the most blocks that can be swapped: one of each list stays."""
        return sum(len(blocks) - 1 for blocks in self.lists.values())

    def counts(self, swapped: int) -> dict[str, int]:
        """Return per list how many of its blocks are swapped: about the same share of each.

        One block more is one block more of one list, never one less of another.
        """
        order = sorted(
            (count / len(blocks), stem)
            for stem, blocks in self.lists.items()
            for count in range(1, len(blocks))
        )
        counts = dict.fromkeys(self.lists, 0)
        for _share, stem in order[:swapped]:
            counts[stem] += 1
        return counts

    def text(self, swapped: int) -> str:
        """Return one line with how many blocks are swapped, and of which lists."""
        counts = self.counts(swapped)
        rows = ", ".join(
            f"{counts[stem]} of {len(blocks)} {stem.rpartition('.')[2]}"
            for stem, blocks in self.lists.items()
        )
        return f"{swapped} blocks swapped ({rows}), activations: {self.activations}"

    def residency(self, swapped: int) -> Residency:
        """Return the decisions with so many blocks swapped."""
        offloaded: dict[TensorUse, int] = {}
        slots: dict[TensorUse, int] = {}
        for stem, count in self.counts(swapped).items():
            if count:
                self._swap(self.lists[stem], count, offloaded, slots)
        return Residency(self.runs, offloaded, prefetch_slots=slots)

    def _swap(
        self,
        blocks: Sequence[Sequence[int]],
        count: int,
        offloaded: dict[TensorUse, int],
        slots: dict[TensorUse, int],
    ) -> None:
        turn, size = 2 * len(blocks), len(blocks) - count
        starts = self._starts(blocks)
        for number, weights in enumerate(blocks):
            for x in weights:
                used = [(p, number if p < self.backward else turn - 1 - number) for p in self.uses[x]]
                # Around the end: the first use of the next iteration.
                for (position, step), (following, until) in pairwise(
                    [*used, (used[0][0], used[0][1] + turn)]
                ):
                    since = entered({number}, range(step, until), len(blocks), size)
                    if since is not None:
                        offloaded[x, position] = Memory.HOST
                        # A slot after its use is in the iteration before.
                        start = starts[since % turn]
                        slots[x, following] = start if since < turn <= until else min(start, following)

    def _starts(self, blocks: Sequence[Sequence[int]]) -> list[int]:
        """Return per step the position at which it begins: after the runs of all blocks before it."""
        ends = [0] * (2 * len(blocks))
        for number, weights in enumerate(blocks):
            for position in (p for x in weights for p in self.uses[x]):
                step = number if position < self.backward else len(ends) - 1 - number
                ends[step] = max(ends[step], position + 1)
        return [0, *accumulate(ends[:-1], max)]


def block_lists(solver: str, graph: Graph, activations: str, smallest: int) -> BlockLists:
    """Return the lists of blocks of a graph with their frozen weights of at least `smallest` bytes.

    Raises NotAcceptedError if no list has two blocks with such weights.
    """
    traced = in_default_mode(range(len(graph.operations)))
    ordered = prune(graph, traced if activations == "keep" else list(runs(graph)))
    uses, _on_host = uses_of(graph, ordered)
    changed = {x for row in graph.mutate_lists for x in row}
    blocks: dict[str, list[int]] = defaultdict(list)
    for x in sorted((x for x in uses if graph.tensors.kind[x] == Kind.PARAMETER), key=lambda x: uses[x][0]):
        if x not in changed and graph.tensors.bytes[x] >= smallest:
            blocks[numbered(graph.tensors.layer[x])].append(x)
    blocks.pop("", None)  # outside of all lists
    lists: dict[str, list[list[int]]] = defaultdict(list)
    for name, weights in blocks.items():  # in forward order: by their first uses
        lists[name.rpartition(".")[0]].append(weights)
    several = {stem: rows for stem, rows in lists.items() if len(rows) > 1}
    if not several:
        raise NotAcceptedError(
            f"{solver} takes models with lists of blocks whose weights are frozen, as in the training of a "
            f"LoRA; {graph.name} has none"
        )
    return BlockLists(activations, ordered, several, uses, _backward(graph, ordered))


def _backward(graph: Graph, ordered: Sequence[Run]) -> int:
    """Return the position of the first run that is not of the forward part."""
    seen: set[int] = set()
    for position, (operation, _mode) in enumerate(ordered):
        if graph.operations.phase[operation] >= Phase.LOSS or operation in seen:
            return position
        seen.add(operation)
    return len(ordered)
