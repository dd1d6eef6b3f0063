"""Checkmate's integer program, on operations and tensors separately, with intervals instead of FREE.

A slot (t, k) is where operation k may run in stage t (stages/slots.py). For each tensor only the slots of
operations that touch it matter; between two of them it is held or not, and that is one variable:

    paper (2.1.1, 2.4)        here                    meaning
    R_{t,k}                   runs                    operation k runs in stage t: a binary per variant
    S_{t,i}, P_{t,i}          held                    the tensor is on the device (S: as stage t begins)
    S_{t,(k,i)}               needed                  producer k's contribution is in it, for a use to come
    FREE_{t,i,k}              held before − after     no variable
    U_{t,k}, create, delete   left side of (4)        no variable: a sum over what is held
    C_k                       variant.time            seconds, over all operations' mean fastest variant
    M_i, tmpM_k, M_budget     size, workspace, limit  bytes, in thousandths of the capacity

    minimise Σ time · runs                                         over all slots and variants
    (1) runs ≤ needed before the slot                              for what the operation reads
    (2) needed after ≤ needed before + runs that make it           in a slot that touches it
    (3) needed before + runs that make it ≤ 1                      what is made anew was not needed
    (4) Σ size · (held before + made) + workspace · runs ≤ limit   in every slot

A tensor with one producer is held while it is needed. One with several is held while any contribution is
needed, and a producer that contributes to an allocation that has its share already takes the size twice: (5)
to (7).

Given the runs, the least values of all other variables by (1) to (7) are 0 or 1. So only `runs` must be
integer; most others are declared so too, since HiGHS then cuts better. FREE, its hazards and κ are not
needed, and the relaxation is far tighter. O(n · edges) variables. (4) is dense, and solves faster than the
recurrence for U.

An execution variant that takes longer than all operations in all stages counts as long as that: no bound is
above what it was, and no cost so far from the others that a solver loses them.

References: Jain et al., Checkmate, MLSys 2020, arXiv:1910.02653, equations 1 to 8; X. Zhao, thesis, 2024,
2.1.1 and 2.4, where the objective must count t = k too. (2), (3), (5) to (7) are in tensors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, inf

from ....graphs.graph import Graph
from ...milp.linear import column_sum
from ...milp.model import Model, Program
from ...stages.slots import RunColumns, Slot, last_stages, slots_of, variants_of
from .tensors import TensorColumns

SCALE = 1000.0
TOLERANCE = 1e-9
"""SCALE is the capacity in (4), so what exceeds it by 1e-12 of it is noticed: bytes are exact."""

ROOM = 2e-8
"""Excess over the limit that (4) allows at least: by the tolerance a solver can't tell more from less.

If that is a byte or more, an answer above the budget is detected by the simulator, and the capacity lowered.
"""

NEGLIGIBLE = 1e-8
"""Coefficients below this are left out of (4): solvers drop them."""


@dataclass(frozen=True)
class StagedProgram:
    """A written program, with the columns that are runs.

    seconds: what 1 in the objective stands for.
    """

    program: Program
    runs: RunColumns
    seconds: float


class TooLargeError(Exception):
    """The program would have more than the allowed number of entries."""


def staged_program(
    graph: Graph, capacity: int, *, least: bool = False, most_entries: int = 0
) -> StagedProgram:
    """Write Checkmate's integer program for a graph.

    capacity: bytes for all that is not resident from the start.
    least: minimise the bytes instead, knowing that `capacity` is enough.
    most_entries: raise TooLargeError beyond that many nonzeros (0: no limit).
    """
    return Unrolling(graph, capacity, last_stages(graph), least, most_entries).program()


class Unrolling:
    """Writes the program slot by slot. last: per operation, the last stage in which it may run."""

    def __init__(
        self, graph: Graph, capacity: int, last: list[int], least: bool = False, most_entries: int = 0
    ) -> None:
        operations = graph.operations
        self.graph, self.model, self.most_entries = graph, Model(tolerance=TOLERANCE), most_entries
        self.variants = [variants_of(graph, k) for k in range(len(operations))]
        self.last = last
        self.reads = [[x for x in inputs if not graph.resident[x]] for inputs in graph.input_lists]
        sizes: list[int] = graph.tensors.bytes.tolist()
        # All sums are multiples of it: what fits and what does not differ by a whole quantum.
        quantum = gcd(*sizes, *(variant.workspace for variants in self.variants for variant in variants)) or 1
        whole = capacity // quantum
        self.unit = float(max(whole, 1) * quantum) / SCALE
        room = max(0.5 * quantum / self.unit, ROOM)  # half a quantum: rounding can't forbid what fits
        self.limit = whole * quantum / self.unit + room
        self.peak = self.model.column(upper=self.limit, cost=1.0) if least else None
        fastest = sum(min(variant.time for variant in variants) for variants in self.variants)
        self.seconds = fastest / max(1, len(operations)) or 1.0
        self.slowest = len(operations) * fastest or inf
        self.cost = 0.0 if least else 1.0 / self.seconds
        producers = graph.producers.lists()
        self.tensors = {
            x: TensorColumns.at_first(size / self.unit, until, {k: self.last[k] for k in producers[x]})
            for x, (size, until) in enumerate(zip(sizes, self._last_uses(), strict=True))
            if producers[x]
        }
        self.held: dict[int, int] = {}
        self.runs: dict[Slot, list[tuple[int, int]]] = {}

    def _last_uses(self) -> list[Slot]:
        until: list[Slot] = [(-1, -1)] * len(self.graph.tensors)
        for k, reads in enumerate(self.reads):
            for x in reads:
                until[x] = max(until[x], (self.last[k], k))
        for x in self.graph.results:
            until[x] = (len(self.reads), 0)
        return until

    def program(self) -> StagedProgram:
        for slot in slots_of(self.last):
            self.write(slot)
            if 0 < self.most_entries < self.model.entries:
                raise TooLargeError
        for x in self.graph.results:
            if x in self.tensors:
                self.tensors[x].require(self.model, [], at_least=1.0)
        return StagedProgram(self.model.program(), RunColumns(self.runs), self.seconds)

    def write(self, slot: Slot) -> None:
        """Write the rows of one slot."""
        stage, k = slot
        variants = [
            (variant, self.model.binary(cost=min(variant.time, self.slowest) * self.cost))
            for variant in self.variants[k]
        ]
        runs = [column for _variant, column in variants]
        self.runs[slot] = [(variant.mode, column) for variant, column in variants]
        # In its own stage the operation runs; in later ones at most once, in one variant.
        if k == stage or len(variants) > 1:
            self.model.add(column_sum(*runs).between(float(k == stage), 1.0))
        producers = {
            x: [column for variant, column in variants if x in variant.writes] for x in variants[0][0].writes
        }
        self._count_bytes(
            k, producers, {column: variant.workspace / self.unit for variant, column in variants}
        )
        for x in self.reads[k]:
            self.tensors[x].require(self.model, runs)  # (1)
            self._pass(slot, x, [])
        for x, made in producers.items():
            self._pass(slot, x, made)

    def _pass(self, slot: Slot, x: int, made: list[int]) -> None:
        self.tensors[x].pass_slot(self.model, slot, made)
        self.held.pop(x, None)
        if (held := self.tensors[x].held) is not None:
            self.held[x] = held

    def _count_bytes(self, k: int, producers: Mapping[int, list[int]], workspaces: dict[int, float]) -> None:
        """Write (4) for operation k in the current slot."""
        total = dict(workspaces)
        for x, column in self.held.items():
            total[column] = self.tensors[x].size
        for x, made in producers.items():
            for column in self.tensors[x].new_bytes(self.model, k, made):
                total[column] = total.get(column, 0.0) + self.tensors[x].size
        entries = [(column, size) for column, size in total.items() if size > NEGLIGIBLE]
        if self.peak is not None:
            self.model.row([*entries, (self.peak, -1.0)], upper=0.0)
        # Rows that no choice can break are left out.
        elif sum(size for _column, size in entries) > self.limit:
            self.model.row(entries, upper=self.limit)
