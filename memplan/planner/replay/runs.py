"""Seconds, peak and schedule of a sequence of runs on the device alone, by the simulator's rules, compiled.

The sequence is pruned and each tensor deleted after its last use, as in planner/schedule/sequence.py, and
simulated as in planner/simulator/walk.py; without transfers the period is the computing time, or the time one
thread takes to launch, whichever is longer. Some milliseconds for 100,000 operations. Schedules are still
validated by the simulator before they are returned: this tells which of many sequences is worth that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...graphs.adjacency import Adjacency, Indices
from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import Schedule, Verb
from ..schedule.sequence import Run

_COMPUTE, _DELETE, _DEVICE = int(Verb.COMPUTE), int(Verb.DELETE), int(Memory.DEVICE)
Number = TypeVar("Number", np.int64, np.float64)

_MOST_BITS = 62
"""Contributions to one tensor that fit a number."""


class VariantRecord(NamedTuple):
    """The execution variants of all operations on the device: row k is operation k's standard one, then the
    others.

    Row r makes made[start[r]] … made[start[r + 1] − 1], `bits` of each; operation, seconds, launches and
    workspace are a row's. Operation k reads or changes inputs[input_start[k]] …, likewise. Per tensor: size,
    whole (all contributions), results, and resident: there from the start, to stay.
    """

    start: Ints
    made: Ints
    bits: Ints
    operation: Ints
    seconds: Floats
    launches: Floats
    workspace: Ints
    input_start: Ints
    inputs: Ints
    size: Ints
    whole: Ints
    results: NDArray[np.bool_]
    resident: NDArray[np.bool_]


class RunFigures(NamedTuple):
    """Figures of a sequence of runs.

    time: seconds. peak: bytes. tightest: the position of the first run at which the peak is reached.
    """

    time: float
    peak: int
    tightest: int


class _Known(NamedTuple):
    """The arrays kept for a graph.

    modes: per operation, the row before that of its first other variant; −1 if it has none.
    """

    variants: VariantRecord
    modes: Ints

    def rows(self, runs: Ints) -> Ints:
        """Return the variants' rows of runs, shape (runs, 2)."""
        return np.where(runs[:, 1] > 0, self.modes[runs[:, 0]] + runs[:, 1], runs[:, 0])


_known: WeakKeyDictionary[Graph, _Known | None] = WeakKeyDictionary()


def figures_of_runs(graph: Graph, runs: Sequence[Run] | Ints) -> RunFigures | None:
    """Return the figures of a sequence of runs; None if they cannot be computed here.

    That is so if a run does not find its inputs, the host is used, or a tensor has too many contributions.
    runs: also as an array, shape (runs, 2).
    """
    if graph not in _known:
        _known[graph] = _variants_of(graph)
    known = _known[graph]
    if known is None:
        return None
    columns = np.array(runs, np.int64).reshape(-1, 2)
    found = np.zeros(4)
    if not _play(known.variants, known.rows(columns), found):
        return None
    return RunFigures(max(float(found[0]), float(found[1])), int(found[2]), int(found[3]))


def schedule_of_runs(graph: Graph, runs: Sequence[Run] | Ints) -> Schedule:
    """Return what `schedule_of` returns, for runs of which `figures_of_runs` has returned the figures."""
    known = _known[graph]
    assert known is not None
    columns = np.array(runs, np.int64).reshape(-1, 2)
    rows = known.rows(columns)
    most = len(rows) + int(_most_deletes(known.variants, rows))
    verbs, targets, wheres = np.empty(most, np.uint8), np.empty(most, np.int32), np.empty(most, np.int32)
    length = _write(known.variants, rows, columns[:, 1].copy(), (verbs, targets, wheres))
    return Schedule(verbs[:length].copy(), targets[:length].copy(), wheres[:length].copy())


def _variants_of(graph: Graph) -> _Known | None:
    operations, whole = graph.operations, graph.whole_contributions
    if max(whole, default=0) >= 1 << _MOST_BITS:
        return None
    count, more = len(operations), list[Run]()
    modes = np.full(count, -1)
    for operation, own in operations.modes.items():
        if any(mode.uses_host for mode in own):
            return None
        modes[operation] = count + len(more) - 1
        more += [(operation, mode) for mode in range(1, len(own) + 1)]
    made = [graph.contributions(operation, mode) for operation, mode in more]
    rows = Adjacency.of([[x for x, _bit in row] for row in made])
    writes, inputs = operations.writes, graph.inputs
    results = np.zeros(len(graph.tensors), np.bool_)
    results[list(graph.results)] = True

    def column(standard: NDArray[Number], others: list[int] | list[float]) -> NDArray[Number]:
        return np.concatenate([standard, np.array(others, standard.dtype)])

    variants = VariantRecord(
        start=np.concatenate([writes.start, writes.start[-1] + rows.start[1:]]),
        made=np.concatenate([writes.columns, rows.columns]).astype(np.int64),
        bits=column(1 << graph.contribution_numbers, [bit for row in made for _x, bit in row]),
        operation=column(np.arange(count), [operation for operation, _mode in more]),
        seconds=column(operations.time, [graph.seconds(*run) for run in more]),
        launches=column(operations.launch, [graph.launch(*run) for run in more]),
        workspace=column(operations.workspace, [graph.workspace(*run) for run in more]),
        input_start=inputs.start,
        inputs=inputs.columns.astype(np.int64),
        size=graph.tensors.bytes.astype(np.int64),
        whole=np.array(whole, np.int64),
        results=results,
        resident=graph.resident,
    )
    return _Known(variants, modes)


@compiled
def _play(variants: VariantRecord, rows: Ints, found: Floats) -> bool:
    """Simulate a sequence, and tell whether every run finds its inputs.

    rows: the variants to run. found: output: seconds, seconds of launches, the peak, and the run that reaches
    it.
    """
    length = len(rows)
    most = _most_deletes(variants, rows)
    begin, end, dead = np.zeros(length, np.int64), np.zeros(length, np.int64), np.empty(most, np.int64)
    kept = np.zeros(length, np.bool_)
    _prune(variants, rows, kept, begin, end, dead)
    have, used = np.zeros(len(variants.size), np.int64), 0
    for x in range(len(have)):
        if variants.resident[x]:
            have[x] = variants.whole[x]
            used += variants.size[x]
    peak = used
    for place in range(length):
        if not kept[place]:
            continue
        row = rows[place]
        operation = variants.operation[row]
        for k in range(variants.input_start[operation], variants.input_start[operation + 1]):
            # A contribution is missing: only the simulator says which rule that breaks.
            if have[variants.inputs[k]] != variants.whole[variants.inputs[k]]:
                return False
        transient = variants.workspace[row]
        for k in range(variants.start[row], variants.start[row + 1]):
            x = variants.made[k]
            if not have[x]:
                used += variants.size[x]
            # Recomputed while it is there: into workspace, and dropped.
            elif have[x] & variants.bits[k]:
                transient += variants.size[x]
        for k in range(variants.start[row], variants.start[row + 1]):
            have[variants.made[k]] |= variants.bits[k]
        if used + transient > peak:
            peak, found[3] = used + transient, place
        found[0] += variants.seconds[row]
        # The training thread is a queue of its own: the slower of the two sums is the period.
        found[1] += variants.launches[row]
        for k in range(begin[place], end[place]):
            if have[dead[k]]:
                have[dead[k]] = 0
                used -= variants.size[dead[k]]
    found[2] = peak
    return True


@compiled
def _write(
    variants: VariantRecord, rows: Ints, modes: Ints, columns: tuple[NDArray[np.uint8], Indices, Indices]
) -> int:
    """Write a sequence's schedule, and return its number of steps.

    rows: the variants to run. modes: their modes. columns: output: verbs, targets and wheres.
    """
    length, most = len(rows), _most_deletes(variants, rows)
    begin, end, dead = np.zeros(length, np.int64), np.zeros(length, np.int64), np.empty(most, np.int64)
    kept, gone = np.zeros(length, np.bool_), np.full(len(variants.size), -1)
    _prune(variants, rows, kept, begin, end, dead)
    verbs, targets, wheres = columns
    step = 0
    for place in range(length):
        if not kept[place]:
            continue
        verbs[step], targets[step], wheres[step] = _COMPUTE, variants.operation[rows[place]], modes[place]
        step += 1
        for k in range(begin[place], end[place]):
            # An operation that adds to what it reads notes it twice.
            if gone[dead[k]] != place:
                gone[dead[k]] = place
                verbs[step], targets[step], wheres[step] = _DELETE, dead[k], _DEVICE
                step += 1
    return step


@inner
def _most_deletes(variants: VariantRecord, rows: Ints) -> int:
    """Return the most tensors that `_prune` notes."""
    operation = variants.operation[rows]
    made = variants.start[rows + 1] - variants.start[rows]
    return (made + variants.input_start[operation + 1] - variants.input_start[operation]).sum()


@inner
def _prune(
    variants: VariantRecord, rows: Ints, kept: NDArray[np.bool_], begin: Ints, end: Ints, dead: Ints
) -> None:
    """Fill in which runs are kept, and the tensors to delete after each: dead[begin[place]] … dead[end[place]
    − 1]."""
    length, fill = len(rows), 0
    need = np.zeros(len(variants.size), np.int64)
    first = np.full(len(variants.input_start) - 1, -1)
    for place in range(length - 1, -1, -1):
        # Backwards, so that the earliest run of an operation is left.
        first[variants.operation[rows[place]]] = place
    for x in range(len(need)):
        if variants.results[x]:
            need[x] = variants.whole[x]
    for place in range(length - 1, -1, -1):
        row = rows[place]
        operation = variants.operation[row]
        # A first run stays even if nobody needs it: every operation runs once.
        stays = first[operation] == place
        for k in range(variants.start[row], variants.start[row + 1]):
            stays |= need[variants.made[k]] & variants.bits[k] != 0
        kept[place] = stays
        if not stays:
            continue
        begin[place] = fill
        for k in range(variants.start[row], variants.start[row + 1]):
            fill = _note(variants, need, dead, fill, variants.made[k])
        for k in range(variants.input_start[operation], variants.input_start[operation + 1]):
            fill = _note(variants, need, dead, fill, variants.inputs[k])
        end[place] = fill
        for k in range(variants.start[row], variants.start[row + 1]):
            # Before this run the contribution is not needed; before that, its inputs are, whole.
            need[variants.made[k]] &= ~variants.bits[k]
        for k in range(variants.input_start[operation], variants.input_start[operation + 1]):
            need[variants.inputs[k]] = variants.whole[variants.inputs[k]]


@inner
def _note(variants: VariantRecord, need: Ints, dead: Ints, fill: int, x: int) -> int:
    """Add tensor x to `dead` if no later run needs it and it may be deleted; return the new length."""
    if need[x] or variants.resident[x]:
        return fill
    dead[fill] = x
    return fill + 1
