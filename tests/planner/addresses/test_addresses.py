"""Lifetimes are what the simulator counts; a layout has no overlap, and no arena below its bound."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from memplan.graphs.arrays import Ints
from memplan.graphs.machine import Memory
from memplan.planner.addresses.addresses import lay_out, rows_of
from memplan.planner.addresses.first_fit import most_beside
from memplan.planner.addresses.layout import Layout
from memplan.planner.addresses.lifetimes import (
    WORKSPACE,
    Lifetimes,
    lifetimes,
    lifetimes_without_transfers,
    stays_on_device,
)
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.curves import byte_curves
from memplan.planner.simulator.simulate import simulate
from strategies import Case, random_case


def cases(first: int, count: int) -> list[Case]:
    found = [random_case(Random(seed)) for seed in range(first, first + count)]
    return [case for case in found if _holds(case)]


def _holds(case: Case) -> bool:
    try:
        simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
    except InvalidScheduleError:
        return False
    return True


def of(case: Case, memory: Memory = Memory.DEVICE) -> Lifetimes:
    return lifetimes(case.graph, case.schedule, memory, budget=case.budget, machine=case.machine)


def counted(rows: Lifetimes, tensor: bool = True) -> Ints:
    """Bytes per step, a copy and a step at a time."""
    bytes_ = np.zeros(rows.steps, np.int64)
    for x, size, start, end in zip(rows.tensor, rows.size, rows.start, rows.end, strict=True):
        if tensor or x != WORKSPACE:
            np.add.at(bytes_, np.arange(start, end) % rows.steps, size)
    return bytes_


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(4))
def test_lifetimes_are_the_simulators(batch: int) -> None:
    """Its curves, step by step; on the host, where workspaces are none, never more."""
    moved = still = longer = alone = 0
    for case in cases(400 * batch, 400):
        rows = of(case)
        replay = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        live = rows.live()
        assert live.tolist() == counted(rows).tolist() == replay.device_curve.tolist()
        _device, host, disk, _pinned = byte_curves(
            case.graph, case.schedule, budget=case.budget, machine=case.machine
        )
        assert of(case, Memory.DISK).live().tolist() == disk.tolist()
        assert (of(case, Memory.HOST).live() <= host).all()
        workspaces = rows.of(rows.tensor == WORKSPACE)
        assert workspaces.live().tolist() == replay.workspace_curve.tolist()
        if stays_on_device(case.graph, case.schedule):
            alone += 1
            quick = lifetimes_without_transfers(case.graph, case.schedule)
            assert all(np.array_equal(*columns) for columns in zip(quick, rows, strict=True))
        only_here = set(case.schedule.verbs.tolist()) <= {Verb.COMPUTE, Verb.DELETE}
        still, moved = still + only_here, moved + (not only_here)
        longer += int((rows.end > rows.start + rows.steps).sum())
    assert moved > 20
    assert still > 20
    assert longer > 20
    assert alone > 10


def test_a_copy_that_is_there_when_it_comes_again() -> None:
    """In an iteration of 4 steps: one for 9, one for 4, one for 2. The cut makes room for itself."""
    columns = ([0, 1, 2], [8, 4, 2], [2, 0, 3], [11, 4, 5])
    rows = Lifetimes(*(np.array(column, np.int64) for column in columns), steps=4)
    assert rows.live().tolist() == counted(rows).tolist() == [22, 20, 28, 22]
    assert [rows.there(step).tolist() for step in range(4)] == [[2, 1, 1], [2, 1, 0], [3, 1, 0], [2, 1, 1]]
    assert rows.cut().end.tolist() == [6, 4, 5]


@pytest.mark.parametrize("batch", range(2))
def test_no_two_share_a_byte(batch: int) -> None:
    """Every byte of every step is asked for its owner."""
    for case in cases(5000 + 200 * batch, 200):
        for memory in Memory:
            layout = lay_out(
                rows_of(case.graph, case.schedule, memory, budget=case.budget, machine=case.machine)
            )
            assert layout.size >= layout.bound
            assert layout.overlap() is None
            if layout.size < 10_000:
                _each_byte_has_one_owner(layout)


def _each_byte_has_one_owner(layout: Layout) -> None:
    rows = layout.lifetimes
    taken = np.zeros((rows.steps, layout.size), bool)
    for i, offset in enumerate(layout.offsets):
        steps = np.arange(rows.start[i], rows.end[i]) % rows.steps
        place = np.ix_(steps, np.arange(offset, offset + rows.size[i]))
        assert not taken[place].any()
        taken[place] = True


def random_rows(random: Random, count: int, steps: int) -> Lifetimes:
    starts = sorted(random.randrange(steps) for _ in range(count))
    spans = [random.randint(1, steps) for _ in range(count)]
    ends = [start + span for start, span in zip(starts, spans, strict=True)]
    sizes = [random.randint(1, 5) for _ in range(count)]
    columns = (np.array(each, np.int64) for each in (range(count), sizes, starts, ends))
    return Lifetimes(*columns, steps=steps)


def test_an_overlap_is_found() -> None:
    """As asking every byte of every step does, on random offsets."""
    found = 0
    for seed in range(300):
        random = Random(seed)
        rows = random_rows(random, random.randint(0, 6), 5)
        layout = Layout(rows, np.array([random.randrange(12) for _ in rows.size], np.int64))
        overlap = layout.overlap()
        try:
            _each_byte_has_one_owner(layout)
        except AssertionError:
            found += 1
            assert overlap is not None, seed
            i, j = overlap
            low = max(layout.offsets[i], layout.offsets[j])
            assert low < min(layout.offsets[k] + rows.size[k] for k in (i, j))
            assert rows.meet(i, j)
        else:
            assert overlap is None, seed
    assert 50 < found < 250


def test_what_is_there_beside() -> None:
    for seed in range(100):
        rows = random_rows(Random(seed), 5, 6)
        live = counted(rows)
        most = [live[np.arange(s, e) % 6].max() for s, e in zip(rows.start, rows.end, strict=True)]
        assert most_beside(rows).tolist() == most


def test_copies_are_found_by_step_and_at_the_start() -> None:
    """One comes back in step 5 and goes in step 2 of the next iteration; one is never deleted."""
    columns = ([0, 1, 2], [4, 2, 8], [0, 2, 5], [8, 4, 10])
    rows = Lifetimes(*(np.array(column, np.int64) for column in columns), steps=8)
    layout = Layout(rows, np.array([10, 4, 0], np.int64))
    assert (layout.at(2, 5), layout.at(1, 2), layout.at(2, 2)) == (0, 4, None)
    assert (layout.initial(2), layout.initial(0), layout.initial(1)) == (0, 10, None)
    assert layout.size == 14
