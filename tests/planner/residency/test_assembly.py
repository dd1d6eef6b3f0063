"""Prefetches stand where enumeration over all slots finds them, in `residency` and in `joint` alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from layered_training import HOST_MODE, LINKED, random_runs, training
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.residency.assembly import assemble
from memplan.planner.residency.lifetimes import find_lifetimes
from memplan.planner.residency.prefetch_placement import (
    LOOK_AHEADS,
    ResidencyTransfers,
    build_schedule,
    place_prefetches,
)
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.residency.tensor_transfers import AS_EARLY_AS_WANTED, FIXED_STEP, fetch_type
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint.state import State

HOPS = 2
FETCH = fetch_type(HOPS)
ROOMY = 2**40


class Fetch(NamedTuple):
    """A row FETCH in the test's own words. seconds: of the copy to the device, then of that to the host."""

    use: int
    earliest: int
    size: int
    seconds: tuple[int, ...]


class Case(NamedTuple):
    """durations: of the runs. curves, caps: of the device and the host."""

    durations: list[int]
    fetches: list[Fetch]
    curves: list[list[int]]
    caps: list[int]
    look_ahead: float

    @property
    def moments(self) -> int:
        return 2 * len(self.durations) + 1

    def time(self, moment: int) -> int:
        """When the slot at a moment starts, if no run waits."""
        iteration, inside = divmod(moment, self.moments)
        return iteration * sum(self.durations) + sum(self.durations[: inside // 2])

    def slots(self, first: int, last: int) -> list[int]:
        return [moment for moment in range(first, last + 1) if moment % self.moments % 2 == 0]


def random_case(random: Random, most: int) -> Case:
    durations = [random.choice((0, 1, 2, 3)) for _ in range(random.randint(0, 4))] + [1]
    random.shuffle(durations)
    moments = 2 * len(durations) + 1
    fetches: list[Fetch] = []
    for _ in range(random.randint(1, most)):
        use = 2 * random.randrange(len(durations)) + 1
        earliest = random.randint(use + 1 - moments, use - 1)
        seconds = (random.choice((0, 1, 2)), random.choice((1, 2)))[: random.choice((1, 1, 2))]
        earliest = max(0, earliest) if len(seconds) > 1 else earliest
        fetches.append(Fetch(use, earliest, random.randint(1, 3), seconds))
    fetches.sort(key=lambda fetch: fetch.use)
    curves = [[random.randint(0, 4) for _ in range(moments)] for _ in range(HOPS)]
    caps = [random.randint(3, 9) for _ in range(HOPS)]
    return Case(durations, fetches, curves, caps, random.choice((0.0, 0.5, 1.0, 2.0, 1e9)))


def assembled(case: Case) -> list[tuple[int, ...]]:
    """Per fetch the moments of its copies, by hop."""
    rows = np.zeros(len(case.fetches), FETCH)
    for number, fetch in enumerate(case.fetches):
        seconds = (*fetch.seconds, 0)[:HOPS]
        free = (AS_EARLY_AS_WANTED,) * HOPS
        source = len(fetch.seconds)
        rows[number] = (number, fetch.use, fetch.earliest, fetch.size, source, (0,) * HOPS, free, seconds)
    return _moments_of(case, rows)


def _moments_of(case: Case, rows: np.ndarray) -> list[tuple[int, ...]]:
    starts = np.array([case.time(2 * run) for run in range(len(case.durations) + 1)], np.float64)
    steps = np.empty((len(case.durations) + HOPS * len(rows), 3), np.int64)
    initial = np.zeros(len(rows), np.uint8)
    count = assemble(
        np.zeros(0, FIXED_STEP),
        rows,
        np.arange(len(case.durations)),
        starts,
        np.array(case.curves),
        np.array(case.caps, np.float64),
        case.look_ahead,
        initial,
        steps,
    )
    assert steps[:count][steps[:count, 0] == Verb.COMPUTE, 1].tolist() == [*range(len(case.durations))]
    found: dict[tuple[int, int], int] = {}
    slot = 0
    for verb, target, where in steps[:count].tolist():
        if verb == Verb.COMPUTE:
            slot += 1
            continue
        assert verb == Verb.PREFETCH
        use = int(rows[target]["use"])
        found[target, where] = 2 * slot - case.moments * (2 * slot > use)
    for number in range(len(rows)):
        assert initial[number] == (found[number, 0] < 0)
    return [tuple(found[n, hop] for hop in range(int(rows[n]["source"]))) for n in range(len(rows))]


def is_hidden(case: Case, moments: Sequence[Sequence[int]]) -> bool:
    """Whether no use waits, in this iteration and the next, if copies take `look_ahead` times as long."""
    free, period = [-np.inf] * HOPS, sum(case.durations)
    for iteration in range(2):
        for fetch, placed in zip(case.fetches, moments, strict=True):
            arrived = -np.inf
            for hop in reversed(range(len(placed))):
                begin = case.time(placed[hop]) + iteration * period
                free[hop] = max(free[hop], begin, arrived) + case.look_ahead * fetch.seconds[hop]
                arrived = free[hop]
            if arrived > case.time(fetch.use - 1) + iteration * period:
                return False
    return True


def wanted_by_enumeration(case: Case) -> list[list[int]]:
    """Per copy the latest slot with which no use waits for it, all other copies having begun long ago."""
    long_ago = [[-(10**12) * case.moments] * len(fetch.seconds) for fetch in case.fetches]
    found: list[list[int]] = []
    for number, fetch in enumerate(case.fetches):
        row: list[int] = []
        for hop in range(len(fetch.seconds)):
            latest = -case.moments
            for moment in case.slots(-case.moments, fetch.use - 1):
                tried = [list(each) for each in long_ago]
                tried[number][hop] = moment
                if is_hidden(case, tried):
                    latest = moment
            row.append(latest)
        found.append(row)
    return found


def keeps_within(case: Case, moments: Sequence[Sequence[int]]) -> bool:
    """Whether all bytes fit wherever a copy is there ahead of its use."""
    for memory in range(HOPS):
        curve, early = list(case.curves[memory]), set[int]()
        for fetch, placed in zip(case.fetches, moments, strict=True):
            if memory < len(placed):
                for moment in range(placed[memory], fetch.use - 1):
                    curve[moment % case.moments] += fetch.size
                    early.add(moment % case.moments)
        if any(curve[moment] > case.caps[memory] for moment in early):
            return False
    return True


def placements(case: Case) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All placements that keep the order of need, are no earlier than wanted and within the memory."""
    choices: list[list[tuple[int, ...]]] = []
    for fetch, wanted in zip(case.fetches, wanted_by_enumeration(case), strict=True):
        slots = [case.slots(max(fetch.earliest, low), fetch.use - 1) for low in wanted]
        choices.append([row for row in product(*slots) if list(row) == sorted(row, reverse=True)])
    for moments in product(*choices):
        for hop in range(HOPS):
            line = [row[hop] for row in moments if hop < len(row)]
            if line != sorted(line):
                break
        else:
            if keeps_within(case, moments):
                yield moments


@pytest.mark.sampled(277)
@pytest.mark.parametrize("seed", range(400))
def test_placed_slots_are_the_earliest_of_all_that_are_allowed(seed: int) -> None:
    case = random_case(Random(seed), 3)
    best = min(placements(case), key=lambda moments: [row[::-1] for row in moments])
    assert assembled(case) == list(best)


@pytest.mark.parametrize("seed", range(100))
def test_wanted_slots_are_the_latest_that_hide_all_copies(seed: int) -> None:
    """With memory for all, and every copy fetched as early as one wants."""
    case = random_case(Random(seed), 5)
    longest = [fetch._replace(earliest=fetch.use + 1 - case.moments) for fetch in case.fetches]
    fetches = [fetch._replace(seconds=fetch.seconds[:1]) for fetch in longest]
    case = case._replace(fetches=fetches, caps=[ROOMY] * HOPS, look_ahead=1.0)
    found, wanted = assembled(case), [row[0] for row in wanted_by_enumeration(case)]
    line = [max(low, fetch.earliest) for low, fetch in zip(wanted, fetches, strict=True)]
    line = [moment + moment % case.moments % 2 for moment in line]
    assert [row[0] for row in found] == [max(line[: k + 1]) for k in range(len(line))]
    assert is_hidden(case, found) == is_hidden(case, [[fetch.earliest] for fetch in fetches])


@pytest.mark.parametrize("seed", range(60))
def test_a_copy_with_a_slot_of_its_own_stands_there_and_holds_up_no_other(seed: int) -> None:
    random = Random(seed)
    case = random_case(random, 3)._replace(caps=[ROOMY] * HOPS)
    before = assembled(case)
    rows = np.zeros(len(case.fetches) + 1, FETCH)
    for number, fetch in enumerate(case.fetches):
        seconds, source = (*fetch.seconds, 0)[:HOPS], len(fetch.seconds)
        free = (AS_EARLY_AS_WANTED,) * HOPS
        rows[number] = (number, fetch.use, fetch.earliest, fetch.size, source, (0,) * HOPS, free, seconds)
    use = 2 * random.randrange(len(case.durations)) + 1
    slot = random.choice(case.slots(use + 1 - case.moments, use - 1))
    there = (slot, *[AS_EARLY_AS_WANTED] * (HOPS - 1))
    rows[-1] = len(rows) - 1, use, use - 1, 1, 1, (0,) * HOPS, there, (0.0,) * HOPS
    assert _moments_of(case, rows) == [*before, (slot,)]


@pytest.mark.parametrize("seed", range(60))
def test_a_shift_moves_a_copy_by_slots(seed: int) -> None:
    """As far as it can be fetched, and no later than its use."""
    random = Random(seed)
    case = random_case(random, 1)._replace(caps=[ROOMY] * HOPS)
    fetch = case.fetches[0]._replace(seconds=case.fetches[0].seconds[:1])
    case = case._replace(fetches=[fetch])
    shift = random.choice((-3, -2, -1, 1, 2, 3))
    row = 0, fetch.use, fetch.earliest, 1, 1, (shift, 0), (AS_EARLY_AS_WANTED,) * HOPS, (*fetch.seconds, 0)
    slots = case.slots(-3 * case.moments, 3 * case.moments)
    moved = slots[slots.index(wanted_by_enumeration(case)[0][0]) + shift]
    allowed = case.slots(fetch.earliest, fetch.use - 1)
    expected = min((slot for slot in allowed if slot >= moved), default=allowed[-1])
    assert _moments_of(case, np.array([row], FETCH)) == [(expected,)]


# ── on graphs ───────────────────────────────────────────────────────────────────────────────────


def random_residency(graph: Graph, random: Random, share: float, *, disk: bool) -> Residency:
    runs = random_runs(graph, random)
    offloaded: dict[TensorUse, Memory] = {}
    for lifetime in find_lifetimes(graph, runs):
        to_disk = disk and not lifetime.persistent and random.random() < 0.5
        complete = lifetime.uses and lifetime.uses[0].changes == (not lifetime.persistent)
        for use in lifetime.device_uses if complete else ():
            if random.random() < share:
                offloaded[lifetime.tensor, use.moment // 2] = Memory.DISK if to_disk else Memory.HOST
    return Residency(runs, offloaded)


@pytest.mark.parametrize("seed", range(25))
def test_with_memory_for_all_no_slots_in_the_order_of_need_are_faster(seed: int) -> None:
    """Every vector of slots is simulated."""
    random = Random(seed)
    graph = training(2, frozen=random.randint(0, 2))
    residency = random_residency(graph, random, 0.35, disk=False)
    while len(ResidencyTransfers(graph, LINKED.hierarchy, residency).fetches) > 4:
        kept = dict(list(residency.offloaded.items())[:-1])
        residency = replace(residency, offloaded=kept)
    fetches = ResidencyTransfers(graph, LINKED.hierarchy, residency).fetches
    fetches = fetches[np.argsort(fetches["use"], kind="stable")]
    places = [(int(row["tensor"]), int(row["use"]) // 2) for row in fetches]
    moments, fastest = 2 * len(residency.runs) + 1, np.inf
    slots = [
        [m for m in range(int(row["earliest"]), int(row["use"])) if m % moments % 2 == 0] for row in fetches
    ]
    for line in product(*slots):
        if all(a <= b for a, b in pairwise(line)):
            wanted = {place: m % moments // 2 for place, m in zip(places, line, strict=True)}
            schedule = build_schedule(graph, replace(residency, prefetch_slots=wanted))
            fastest = min(fastest, simulate(graph, schedule, machine=LINKED).figures.time)
    found = place_prefetches(graph, LINKED, ROOMY, residency)
    assert found is not None
    assert found[1].time <= fastest * (1 + 1e-9)


def test_a_rejected_look_ahead_hides_no_other() -> None:
    """If the pinned memory is too small for early reads from the disk, the fastest schedule of the other
    look-aheads is found, in whatever order they are listed."""
    some_hold = 0
    for seed in range(12, 31):
        random = Random(seed)
        graph = training(random.randint(2, 4), frozen=random.randint(0, 3))
        residency = random_residency(graph, random, 0.6, disk=True)
        least = simulate(graph, build_schedule(graph, residency), machine=LINKED).figures
        machine, budget = replace(LINKED, pinned=least.least_pinned), least.least_budget + 8
        each = [place_prefetches(graph, machine, budget, residency, (one,)) for one in LOOK_AHEADS]
        times = [found[1].time for found in each if found is not None]
        for look_aheads in (LOOK_AHEADS, LOOK_AHEADS[::-1]):
            found = place_prefetches(graph, machine, budget, residency, look_aheads)
            assert (None if found is None else found[1].time) == min(times, default=None), seed
        some_hold += 0 < len(times) < len(LOOK_AHEADS)
    assert some_hold > 3


@pytest.mark.sampled(23)
@pytest.mark.parametrize("seed", range(80))
def test_the_search_and_the_planner_place_alike(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(2, 5), frozen=random.randint(0, 3), result=random.random() < 0.3)
    residency = random_residency(graph, random, 0.5, disk=True)
    state = State(graph, LINKED, ROOMY, residency.runs)
    state.send_as(residency.offloaded)
    transfers = ResidencyTransfers(graph, LINKED.hierarchy, residency)
    assert state.curve.tolist() == transfers.device_curve.tolist()
    for look_ahead, room in product(LOOK_AHEADS, (0, 4, ROOMY)):
        state.instance.limits[Memory.DEVICE] = transfers.device_peak + room
        outcome = state.evaluate(look_ahead)
        own = transfers.schedule(*transfers.steps(look_ahead, (transfers.device_peak + room, np.inf)))
        assert as_lists(state.schedule(outcome)) == as_lists(own)
        figures = simulate(graph, own, budget=transfers.device_peak + room, machine=LINKED).figures
        assert figures.time == pytest.approx(outcome.seconds, rel=1e-6)


def as_lists(schedule: Schedule) -> tuple[list[tuple[int, int, int]], object]:
    return list(schedule.rows()), schedule.initial


def read_twice() -> Graph:
    """A weight that lies on the disk, read in host memory by one run and on the device by a later one."""
    draft = Draft("read twice")
    weight = draft.tensor("w", 4, Kind.PARAMETER)
    x = [draft.tensor(f"x{i}", 1) for i in range(6)]
    for i in range(6):
        reads = [*x[i - 1 : i], *([weight] if i in (2, 5) else [])]
        made = Mode("host", 1.0, 0, (x[i],), reads_host=(weight,))
        draft.operation(f"o{i}", time=1, reads=reads, writes=[x[i]], modes=(made,) if i == 2 else ())
    return draft.graph(x[-1:])


@pytest.mark.parametrize("look_ahead", LOOK_AHEADS)
def test_a_fetch_waits_for_the_host_copy_that_another_run_reads(look_ahead: float) -> None:
    """The host copy comes from the disk for run 2; the fetch for run 5 can't stand before that."""
    graph, runs = read_twice(), in_default_mode(range(6))
    runs[2] = 2, HOST_MODE
    residency = Residency(runs, {(0, 2): Memory.DISK, (0, 5): Memory.DISK})
    machine = Machine(links=Links(1.0, 1.0, 4.0, 4.0))
    transfers = ResidencyTransfers(graph, machine.hierarchy, residency)
    schedule = transfers.schedule(*transfers.steps(look_ahead, (ROOMY, ROOMY)))
    simulate(graph, schedule, machine=machine)
    state = State(graph, machine, ROOMY, runs)
    state.send_as(residency.offloaded)
    assert as_lists(state.schedule(state.evaluate(look_ahead))) == as_lists(schedule)


def test_a_start_that_a_schedule_cannot_say_is_rejected() -> None:
    """A weight on the disk that is fetched in the iteration before would start on all three."""
    graph, runs = read_twice(), in_default_mode(range(6))
    residency = Residency(runs, {(0, 2): Memory.DISK, (0, 5): Memory.DISK}, prefetch_slots={(0, 2): 6})
    with pytest.raises(InvalidScheduleError, match="would start in more memories than one"):
        build_schedule(graph, residency)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(60))
def test_a_copy_can_be_fetched_from_its_earliest_slot_on_and_no_sooner(seed: int) -> None:
    """Every slot of every fetch is simulated, the others just before their uses."""
    random = Random(seed)
    graph = training(random.randint(1, 3), frozen=random.randint(0, 2))
    residency = random_residency(graph, random, 0.5, disk=True)
    for fetch in ResidencyTransfers(graph, LINKED.hierarchy, residency).fetches:
        use, earliest, moments = int(fetch["use"]), int(fetch["earliest"]), 2 * len(residency.runs) + 1
        for moment in range(use + 1 - moments, use):
            if moment % moments % 2:
                continue
            place = int(fetch["tensor"]), use // 2
            tried = replace(residency, prefetch_slots={place: moment % moments // 2})
            assert holds(graph, tried) == (moment >= min(earliest, use - 1)), (fetch, moment)


def holds(graph: Graph, residency: Residency) -> bool:
    try:
        simulate(graph, build_schedule(graph, residency), machine=LINKED)
    except InvalidScheduleError:
        return False
    return True
