"""The choice of `plan profile --compile`, by measuring both: which groups of operations are compiled.

A group stays if its kernel is faster than its operations together. One that is not is tried once more without
the operations that sum up (Inductor's kernels for norms over channels-last tensors are at times slower than
PyTorch's), then given up. What was chosen is in the graph's `source`, by names of operations, so that `plan
run` makes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ...devices.measuring.measure import Measurement
from ...graphs.errors import MismatchError
from ...graphs.graph import Graph, Kind
from ...program.program import Operation, Program
from .folds import folds
from .fused import Fused, Kernels, fused
from .fusible import sums_up
from .groups import Group, grouped
from .kernel import check_compiler
from .pair import Pair, measured_pair
from .uses import Uses

COMPILED = "compiled"
"""Key of the groups in a graph's `source`: by the name of the compiled operation the names of those that
it is made of, in order.
"""
PATIENT_ROUNDS = 6
"""Number of rounds after which a group that does not pay is given up as a whole."""
FASTER = 0.97
"""Largest time of a kernel, as a share of its operations' time."""
FOLDED = 1.1
"""Largest share for a kernel with operations folded in, for what it saves in memory."""

Progress = Callable[[int, int, str], None]
"""Callback with the number of kernels done, their total number, and the name of the last."""


class Chosen(NamedTuple):
    program: Program
    measured: list[Measurement]
    groups: Mapping[str, list[str]]
    kernels: Kernels


def chosen(program: Program, measured: Sequence[Measurement], progress: Progress | None = None) -> Chosen:
    """Choose by measurement which groups of operations are compiled.

    measured: costs of the program's operations, in order.

    Raises InputError, one line, if nothing can be compiled.
    """
    check_compiler(program.device)
    choice = _Choice(program, measured, progress)
    while True:
        made = choice.made()
        pairs = choice.pairs(made)
        slow = [group for name, group in made.groups.items() if not choice.pays(made, name, pairs[name])]
        # With a failed kernel the program is the unfused one, without groups that could be slow.
        if not (slow := slow or made.failed):
            found = choice.measured(made, pairs)
            slow = choice.raising(made, found)
            if not slow:
                return Chosen(made.program, found, _named(program, made), made.kernels)
        for group in slow:
            choice.give_up(group)


class _Choice:
    """The state of the choice: what has been given up so far.

    banned: operations that are not compiled.
    unfolded: operations that nothing is folded into.
    """

    def __init__(
        self, program: Program, measured: Sequence[Measurement], progress: Progress | None = None
    ) -> None:
        self._program, self._measured, self._progress = program, measured, progress
        self._banned: set[int] = set()
        self._unfolded: set[int] = set()
        self._known: dict[str, Pair] = {}
        self._rounds = 0
        taken = [one.peak_bytes for one in measured]
        self._floor = max(map(partial(footprint, program), program.operations, taken), default=0)
        self._peak = peak(program, taken)[0]

    def made(self) -> Fused:
        self._rounds += 1
        folded = folds(Uses(self._program, {}, self._banned), self._unfolded)
        return fused(self._program, grouped(Uses(self._program, folded, self._banned)))

    def pairs(self, made: Fused) -> dict[str, Pair]:
        found: dict[str, Pair] = {}
        for name in made.groups:
            members, one = made.kernels[name]
            # Equal kernels share one measurement, also across rounds.
            if one.key not in self._known:
                self._known[one.key] = measured_pair(members, one)
            found[name] = self._known[one.key]
            if self._progress is not None:
                self._progress(len(found), len(made.groups), name)
        return found

    def pays(self, made: Fused, name: str, pair: Pair) -> bool:
        """Tell whether the group's kernel is faster than its operations, and takes no more memory than
        some single operation.
        """
        operation = next(each for each in made.program.operations if each.name == name)
        if footprint(made.program, operation, pair.peak_bytes) > self._floor:
            return False
        return pair.ratio < (FOLDED if made.groups[name].folded else FASTER)

    def measured(self, made: Fused, pairs: Mapping[str, Pair]) -> list[Measurement]:
        """Return the measurements of the fused program's operations.

        A kernel's time is its measured share of its operations' time, applied to their times as measured when
        these were: so all times are of one state of the machine.
        """
        names = (operation.name for operation in self._program.operations)
        of = dict(zip(names, self._measured, strict=True))
        for name, pair in pairs.items():
            seconds = sum(self._measured[x].seconds for x in made.groups[name].members)
            of[name] = Measurement(
                pair.ratio * seconds, pair.spread, pair.peak_bytes, pair.result_bytes, launch=pair.launch
            )
        return [of[operation.name] for operation in made.program.operations]

    def raising(self, made: Fused, measured: Sequence[Measurement]) -> list[Group]:
        """Return the group before or at the peak, if that is larger than without kernels."""
        most, where = peak(made.program, [one.peak_bytes for one in measured])
        if most <= self._peak:
            return []
        names = [operation.name for operation in made.program.operations]
        before = [name for name in names[: where + 1] if name in made.groups] or list(made.groups)
        return [made.groups[before[-1]]] if before else []

    def give_up(self, group: Group) -> None:
        """Compile one thing less in the group: without what is folded in, without what sums up, or
        nothing.
        """
        summing = [x for x in group.members if sums_up(self._program.operations[x].call)]
        if group.folded and not self._unfolded.issuperset(group.members):
            self._unfolded.update(group.members)
        elif summing and len(summing) < len(group.members) and self._rounds <= PATIENT_ROUNDS:
            self._banned.update(summing)
        else:
            self._banned.update(group.members)


def _named(program: Program, made: Fused) -> dict[str, list[str]]:
    return {
        name: [program.operations[x].name for x in (*group.folded, *group.members)]
        for name, group in made.groups.items()
    }


def as_in(graph: Graph, program: Program) -> Fused:
    """Compile the groups that the graph names, and put the program in the graph's order.

    Raises InputError, one line, if nothing can be compiled, MismatchError if the groups are not the model's.
    """
    groups = graph.source.get(COMPILED)
    if groups is None:
        return Fused(program, {}, {})
    check_compiler(program.device)
    try:
        made = fused(program, _units(graph, program, groups))
    except (TypeError, AttributeError, IndexError, KeyError) as error:
        raise MismatchError(f"its `{COMPILED}` is not as it was written") from error
    if made.failed:
        names = ", ".join(program.operations[x].name for x in made.failed[0].members)
        raise MismatchError(f"Inductor here compiles {names} to other forms than where it was profiled")
    if _drawing(made.program) != _drawing(program):
        raise MismatchError("its operations draw their random numbers in another order")
    return made


def _units(graph: Graph, program: Program, groups: Mapping[str, Sequence[str]]) -> list[Group]:
    index = {operation.name: i for i, operation in enumerate(program.operations)}
    uses = Uses(program, {})
    units: list[Group] = []
    for name in graph.operations.name:
        names = groups.get(name, [name])
        if missing := [each for each in names if each not in index]:
            raise MismatchError(f"the model has no operation {missing[0]}")
        unit = _group(program, [index[each] for each in names])
        if name in groups and not uses.fusible.issuperset((*unit.members, *unit.folded)):
            raise MismatchError(f"{name} has operations that can't be compiled as one")
        units.append(unit)
    members = [x for unit in units for x in unit.members]
    if len(members) != len(set(members)):
        raise MismatchError("an operation is in it twice")
    return units


def _group(program: Program, operations: Sequence[int]) -> Group:
    """Make a group of the operations; those of another phase than the last are folded in."""
    phase = program.operations[operations[-1]].phase
    folded = tuple(x for x in operations if program.operations[x].phase != phase)
    return Group(tuple(x for x in operations if x not in folded), folded)


def _drawing(program: Program) -> list[str]:
    return [operation.name for operation in program.operations if operation.random]


def peak(program: Program, taken: Sequence[int]) -> tuple[int, int]:
    """Return the peak in bytes above what is resident all the time, and the operation at which it is.

    taken: per operation the bytes above its inputs while it runs, its results included.
    """
    sizes = [storage.bytes for storage in program.storages]
    last = {x: len(taken) for x in program.results}
    for i, operation in reversed(list(enumerate(program.operations))):
        for x in (*operation.reads, *operation.writes):
            # From the end, so that the first entry is the last use.
            last.setdefault(x, i)
    live, most, where = 0, 0, 0
    for i, operation in enumerate(program.operations):
        made = sum(sizes[x] for x in operation.writes)
        if live + max(made, taken[i]) > most:
            most, where = live + max(made, taken[i]), i
        live += made
        passing = {*operation.reads, *operation.writes}
        # Residents are there all the time, and are not part of this peak.
        live -= sum(sizes[x] for x in passing if last[x] == i and program.storages[x].kind >= Kind.ACTIVATION)
    return most, where


def footprint(program: Program, operation: Operation, taken: int) -> int:
    """Return the bytes of what an operation reads and of what it takes above: no plan of it gets by with
    less.
    """
    return sum(program.storages[x].bytes for x in operation.reads) + taken
