"""H-ILP: the fastest schedule of an H-graph within a budget, as an integer program (thesis, 3.4.2 to 3.4.4).

    paper                    here                     meaning
    Comp_{k,o}^t             runs                     node k runs in stage t with choice o: a binary each
    Sp_{j,o}^t               saved                    the phantom of child j, made with option o, exists
    S_{k,d}^t                needed                   node k's contribution is in value d, for a use to come
    P_d^t, A_{k,d}^t         held                     value d exists (before stage t, or within it)
    C_{k,d}^t, D_{k,d}^t     new bytes; held b. − a.  no variables
    U_k^t                    left side of (3.33)      no variable: a sum over what is held and saved
    s_d, p_{j,o}, m_{k,o}    size, saved, step.bytes  bytes, in thousandths of the budget
    time_{k,o}               run.time                 seconds, over the mean of all nodes
    B, M_save                limit, save              bytes

Values are held or not between two slots (t, k) of nodes that touch them, as in checkmate/model.py: the
relaxation is far tighter than with D and its hazards (3.25, 3.26), which then need no variables. Other
differences from the paper:

- a forward node may run without saving a phantom (the paper's options have no such run, though its published
  code does), and, in the stage of its own backward, without making the outputs that are no longer needed;
- a backward node runs once. Then by (3.18) each child makes one phantom, in one stage: `saved` is a sum of
  runs, and (3.16), (3.17) and (3.19) follow;
- what can't be recomputed is a value between nodes, also if a cluster makes and uses it.

Size: O(nodes² · options) columns. Reference: X. Zhao, thesis, 2024, chapter 3; Gusak et al., Hiremate, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graphs.arrays import Floats
from ...milp.linear import Linear, column_sum, total
from ...milp.model import Model, Program
from ..checkmate.tensors import TensorColumns
from ..hierarchy.passes import Tensors
from .graph import HGraph, NodeRun
from .stages import Slot, Stages, choices_at, stages_of

SCALE = 1000.0
NEGLIGIBLE = 1e-9
"""Coefficients that are not above this are left out: solvers drop them."""

MOMENTS = 8
"""Most moments of a node that (3.34) distinguishes; nodes with more have four."""


@dataclass(frozen=True)
class HProgram:
    """A written H-ILP program, with the columns that are choices.

    choices: slot -> (choice, column).
    seconds: what 1 in the objective stands for.
    """

    program: Program
    choices: Mapping[Slot, Sequence[tuple[NodeRun, int]]]
    seconds: float

    def chosen(self, x: Floats) -> dict[Slot, NodeRun]:
        """Return an answer's choices, in order."""
        return {
            slot: choice for slot, row in self.choices.items() for choice, column in row if x[column] > 0.5
        }

    def values(self, chosen: Mapping[Slot, NodeRun]) -> dict[int, float]:
        """Return the columns' values for given choices."""
        return {
            column: float(chosen.get(slot) == choice)
            for slot, row in self.choices.items()
            for choice, column in row
        }


def h_program(
    graph: HGraph, limit: int, save: int | None = None, *, corrected: bool = False, least: bool = False
) -> HProgram:
    """Write the H-ILP program for a budget.

    limit: bytes for all that the nodes hold and use.
    save: bytes left after the loss, None for `limit`.
    corrected: with the correction terms (3.34) instead of (3.33).
    least: minimise the bytes instead, knowing that `limit` is enough.
    """
    return _Writing(graph, limit, save, corrected, least).program()


class _Writing:
    """Writes the program slot by slot."""

    def __init__(self, graph: HGraph, limit: int, save: int | None, corrected: bool, least: bool) -> None:
        self.graph, self.model, self.corrected = graph, Model(negligible=NEGLIGIBLE), corrected
        self.stages: Stages = stages_of(graph)
        self.unit = max(limit, 1) / SCALE
        self.limit, self.save = SCALE, None if save is None else save / self.unit
        mean = sum(node.first[0].run.time for node in graph.nodes) / max(1, len(graph.nodes))
        self.seconds = mean if mean > 0 else 1.0
        self.cost = 0.0 if least else 1.0 / self.seconds
        self.peak = self.model.variable(upper=SCALE, cost=1.0) if least else None
        until = self._last_uses()
        self.values = {
            x: TensorColumns.at_first(size / self.unit, until[x], {k: self.stages.last[k] for k in producers})
            for x, (size, producers) in enumerate(zip(graph.sizes, graph.producers, strict=True))
        }
        self.held: dict[int, int] = {}
        self.saved: dict[int, list[int | None]] = {}
        self.left = 0.0
        self.choices: dict[Slot, list[tuple[NodeRun, int]]] = {}

    def _last_uses(self) -> list[Slot]:
        end = len(self.graph.nodes)
        until: list[Slot] = [(end, 0) if lasts else (-1, -1) for lasts in self.graph.lasts]
        for stage, nodes in enumerate(self.stages.allowed):
            for k in nodes:
                for choice in choices_at(self.graph, (stage, k)):
                    for x in choice.run.reads:
                        until[x] = max(until[x], (stage, k))
        return until

    def program(self) -> HProgram:
        for stage, nodes in enumerate(self.stages.allowed):  # (3.4), (3.5), (3.6), (3.7): no columns
            for k in nodes:
                self._slot((stage, k))
                # What is left after the loss, for as long as the rest of the graph runs.
                if (stage, k) == (self.graph.loss, self.graph.loss) and self.save is not None:
                    self.model.add(self._bytes() <= self.save - self.left)  # M_save, as (2.19)
        for x, lasts in enumerate(self.graph.lasts):
            if lasts:
                self.values[x].require(self.model, [], at_least=1.0)  # (3.8)
        return HProgram(self.model.program(), self.choices, self.seconds)

    def _slot(self, slot: Slot) -> None:
        stage, k = slot
        row = [
            (choice, self.model.binary(cost=choice.run.time * self.cost))
            for choice in choices_at(self.graph, slot)
        ]
        self.choices[slot] = row
        runs = [column for _choice, column in row]
        # In its own stage the node runs, in another at most once, in one choice.
        if k == stage or len(runs) > 1:
            self.model.add(column_sum(*runs).between(float(k == stage), 1.0))  # (3.9), (3.10), (3.15)
        reads: dict[int, list[int]] = {}
        producers: dict[int, list[int]] = {}
        for choice, column in row:
            for x in choice.run.reads:
                reads.setdefault(x, []).append(column)
            for x in choice.run.writes:
                producers.setdefault(x, []).append(column)
        for x, columns in reads.items():
            self._require(x, columns, k if x in producers else None)
        self._pair(slot, row)
        before = dict(self.held)
        new = {x: self.values[x].new_bytes(self.model, k, made) for x, made in producers.items()}
        for x in {**reads, **producers}:
            self._pass(slot, x, producers.get(x, []))
        self._count_bytes(slot, row, before, new)
        self.left += self.graph.nodes[k].leaves / self.unit if stage == k else 0.0
        # The backward node has used up its child's phantom.
        if k > self.graph.loss and self.graph.nodes[k].pair is not None:
            del self.saved[self._child(k)]

    def _require(self, x: int, runs: list[int], k: int | None) -> None:
        """Write (3.13), (3.14): if one of `runs` is 1, all contributions but node k's are in value x."""
        for producer, column in self.values[x].needed.items():
            if producer != k:
                self.model.add(column_sum(column) >= column_sum(*runs))

    def _pass(self, slot: Slot, x: int, made: list[int]) -> None:
        """Write (3.11), (3.12), (3.20) to (3.24)."""
        self.values[x].pass_slot(self.model, slot, made)
        self.held.pop(x, None)
        if (held := self.values[x].held) is not None:
            self.held[x] = held

    def _child(self, k: int) -> int:
        child = self.graph.nodes[k].pair
        assert child is not None
        return child

    def _pair(self, slot: Slot, row: Sequence[tuple[NodeRun, int]]) -> None:
        """Write (3.17) to (3.19): what a forward run saves stays until the backward that uses it."""
        _stage, k = slot
        child = self.graph.nodes[k].pair
        if child is None:
            return
        options = len(self.graph.nodes[self.graph.backward_of[child]].first)
        old = self.saved.get(child, [None] * options)
        if k > self.graph.loss:
            for choice, column in row:
                assert choice.option is not None
                self.model.add(column_sum(column).equals(column_sum(old[choice.option])))
            return
        new: list[int | None] = []
        for option in range(options):
            made = [column for choice, column in row if choice.option == option]
            column = self.model.column()
            self.model.add(column_sum(column).equals(column_sum(old[option], *made)))
            new.append(column)
        self.model.add(column_sum(*new) <= 1.0)  # (3.16)
        self.saved[child] = new

    def _phantoms(self, without: int | None = None) -> Linear:
        """Return the bytes of the phantoms that exist, without those of one child."""
        return Linear(
            (column, choice.saved / self.unit)
            for child, columns in self.saved.items()
            if child != without
            for choice, column in zip(
                self.graph.nodes[self.graph.backward_of[child]].first, columns, strict=True
            )
            if column is not None
        )

    def _bytes(self) -> Linear:
        held = Linear((column, self.values[x].size) for x, column in self.held.items())
        return held + self._phantoms()

    def _count_bytes(
        self,
        slot: Slot,
        row: Sequence[tuple[NodeRun, int]],
        before: Mapping[int, int],
        new: Mapping[int, list[int]],
    ) -> None:
        """Write (3.33), or (3.34) for each moment."""
        _stage, k = slot
        pair = self.graph.nodes[k].pair
        others = {x: column for x, column in before.items() if x not in new and self.held.get(x) == column}
        # Values that the node does not touch: held throughout it.
        base = Linear((column, self.values[x].size) for x, column in others.items())
        base += self._phantoms_beside(slot, row, pair)
        inputs = {x for choice, _column in row for x in choice.run.reads} - set(new)
        for (needs, there), sizes in _moments(row, self.corrected).items():
            touched = [
                # An input that is needed no more at this moment counts only if it is held afterwards.
                (self.held if x in inputs and x not in needs else before, x)
                for x in {*before} - {*others}
            ]
            held = total(column_sum(place.get(x)) * self.values[x].size for place, x in touched)
            made = total(column_sum(*new[x]) * self.values[x].size for x in new if x in there)
            steps = Linear((column, size / self.unit) for column, size in sizes.items())
            self._limit_bytes(base + held + made + steps)

    def _phantoms_beside(self, slot: Slot, row: Sequence[tuple[NodeRun, int]], pair: int | None) -> Linear:
        """Return the phantoms while the node runs.

        Its own are in its steps' bytes, unless it runs without them.
        """
        _stage, k = slot
        phantoms = self._phantoms(without=pair)
        if pair is None or k > self.graph.loss:
            return phantoms
        options = self.graph.nodes[self.graph.backward_of[pair]].first
        for option, saved in enumerate(self.saved[pair]):
            size = options[option].saved / self.unit
            runs = column_sum(*(column for choice, column in row if choice.option == option))
            phantoms += (column_sum(saved) - runs) * size
        return phantoms

    def _limit_bytes(self, used: Linear) -> None:
        used += self.left
        if self.peak is not None:
            self.model.add(used <= self.peak)
        else:
            self.model.add(used <= self.limit, unless_implied=True)


def _moments(
    row: Sequence[tuple[NodeRun, int]], corrected: bool
) -> dict[tuple[Tensors, Tensors], dict[int, int]]:
    """Return (inputs still needed, outputs made) -> what each run takes then: column -> bytes.

    A moment that has no more of both than another, and at which no run takes more, is left out. If there are
    more than MOMENTS, those with any input have all, and those with any output.
    """
    reads = frozenset(x for choice, _column in row for x in choice.run.reads)
    writes = frozenset(x for choice, _column in row for x in choice.run.writes)
    if not corrected:
        return {(reads, writes): {column: choice.run.bytes for choice, column in row}}
    steps = [(s.needs, s.there, s.bytes, column) for choice, column in row for s in choice.run.steps]
    if len({(needs, there) for needs, there, _bytes, _column in steps}) > MOMENTS:
        none = frozenset[int]()
        steps = [(reads if n else none, writes if t else none, size, column) for n, t, size, column in steps]
    kinds: dict[tuple[Tensors, Tensors], dict[int, int]] = {}
    for needs, there in sorted(
        {s[:2] for s in steps}, key=lambda s: (-len(s[0]) - len(s[1]), *map(sorted, s))
    ):
        sizes = {column: 0 for _choice, column in row}
        for also, made, size, column in steps:
            # A moment with more of both takes at least these, so its bytes count here too.
            if needs <= also and there <= made:
                sizes[column] = max(sizes[column], size)
        wider = [kind for kind in kinds if kind[0] >= needs and kind[1] >= there]
        if not any(kinds[kind] == sizes for kind in wider):
            kinds[needs, there] = sizes
    return kinds
