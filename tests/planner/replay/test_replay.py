"""The compiled replay gives the figures of the simulator on schedules that hold."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode
from memplan.graphs.machine import Link, Links, Machine, Memory, Peers
from memplan.planner.baseline import baseline_schedule
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.replay import clock
from memplan.planner.replay.instance import VariantTable, lane_arrays
from memplan.planner.replay.ranking import Replays, by_seconds, starts_of, step_rows
from memplan.planner.replay.replay import UNASKED, figures_for, replay
from memplan.planner.replay.rows import QUEUE, TURN, empty_iteration
from memplan.planner.schedule.schedule import Initial, Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.simulator import clock as judge
from memplan.planner.simulator.clock import _ITERATIONS, Queue, lanes_of
from memplan.planner.simulator.simulate import simulate
from strategies import RATES, Case, random_case, with_shared


def compiled_figures(graph: Graph, schedule: Schedule, machine: Machine, budget: int) -> list[float]:
    """Return the figures of `replay`: seconds, excess, peak per memory, pinned, seconds of other queues."""
    variants = VariantTable(graph)
    instance = variants.instance(machine, budget)
    result = figures_for(instance)
    replay(instance, step_rows(variants, schedule), starts_of(graph, schedule), result, UNASKED, _ITERATIONS)
    return result.tolist()


def test_schedules_are_ranked_by_the_simulators_seconds() -> None:
    """On one graph: those of the same graph on other machines; a schedule that does not hold comes last."""
    ranked = 0
    for seed in range(60):
        case = random_case(Random(seed))
        machine, others = case.machine or case.graph.machine or Machine(), list[Schedule]()
        compiled_figures(case.graph, baseline_schedule(case.graph), machine, 2**60)
        for schedule in (case.schedule, baseline_schedule(case.graph)):
            try:
                simulate(case.graph, schedule, budget=2**40, machine=machine)
            except InvalidScheduleError:
                continue
            others.append(schedule)
        found = by_seconds(case.graph, others, machine, 2**40)
        assert found is not None
        assert sorted(map(id, found)) == sorted(map(id, others))
        seconds = [simulate(case.graph, one, budget=2**40, machine=machine).figures.time for one in found]
        assert seconds == pytest.approx(sorted(seconds))
        ranked += len(found) == 2
        if found:
            replays = Replays(case.graph, machine)
            for one in found:
                own = simulate(case.graph, one, machine=machine).figures.least_budget
                assert replays.least_budget(one) == own
                within = simulate(case.graph, one, budget=own, machine=machine).figures.time
                assert replays.seconds(one, own) == pytest.approx(within)
                assert replays.seconds(one, own - 1) is None
            least = min(simulate(case.graph, one, machine=machine).figures.least_budget for one in found)
            assert by_seconds(case.graph, others, machine, least // 2) == []
    assert ranked > 5


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("batch", "memories"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 2), (5, 4), (6, 5), (7, 8)]
)
@pytest.mark.parametrize(("peers", "shared"), [(False, False), (True, False), (False, True), (True, True)])
def test_same_figures(batch: int, memories: int, peers: bool, shared: bool) -> None:
    seen = 0
    for seed in range(400 * batch, 400 * batch + (150 if peers or shared else 400)):
        case = random_case(Random(seed), memories=memories, peers=peers, shared=shared)
        machine = case.machine or case.graph.machine or Machine()
        budget = 2**60 if case.budget is None else case.budget
        try:
            figures = simulate(case.graph, case.schedule, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        result = compiled_figures(case.graph, case.schedule, machine, budget)
        time, excess, *peaks, pinned, _elsewhere = result
        assert excess == 0
        assert tuple(peaks) == figures.peaks, seed
        assert pinned == (0 if machine.crossing_capacity is None else figures.pinned_peak), seed
        assert time == pytest.approx(figures.time, rel=1e-12, abs=1e-12), seed
        seen += 1
    assert seen > 50


@pytest.mark.parametrize("pinned", [None, 16])
def test_what_the_device_makes_on_the_host(pinned: int | None) -> None:
    """C, on the CPU, adds to g on the host, then F, on the device; H, on the CPU, has nothing to wait for but
    that. g is pinned from C on."""
    draft = Draft("below")
    g, h = draft.tensor("g", 8), draft.tensor("h", 1)
    draft.operation("C", time=1, writes=[g], modes=[Mode("cpu", 3, 0, (g,), on_host=True)])
    draft.operation("F", time=5, writes=[g], modes=[Mode("go", 7, 0, (g,), writes_host=(g,))])
    draft.operation("H", time=1, reads=[g], writes=[h], modes=[Mode("cpu", 2, 0, (h,), on_host=True)])
    graph, machine = draft.graph([h]), Machine(pinned=pinned)
    schedule = Schedule.of([compute(0, 1), compute(1, 1), compute(2, 1)])
    figures = simulate(graph, schedule, machine=machine).figures
    assert (figures.time, figures.peak, figures.host_peak, figures.pinned_peak) == (3 + 7 + 2, 0, 9, 8)
    expected = [12, 0, 0, 9, 0, 0 if pinned is None else 8, 3 + 2]
    assert compiled_figures(graph, schedule, machine, 0) == expected


def test_a_run_that_writes_host_memory_stalls_once() -> None:
    """F, on the device, adds to what C, on the CPU, has made; G follows on the device."""
    draft = Draft("below")
    g, h = draft.tensor("g", 8), draft.tensor("h", 1)
    draft.operation("C", time=1, writes=[g], modes=[Mode("cpu", 12, 0, (g,), on_host=True)])
    draft.operation("F", time=5, writes=[g], modes=[Mode("go", 7, 0, (g,), writes_host=(g,))])
    draft.operation("G", time=2, writes=[h])
    graph, machine = draft.graph([h]), Machine()
    schedule = Schedule.of([compute(0, 1), compute(1, 1), compute(2)])
    variants, waits = VariantTable(graph), np.zeros(2)
    instance = variants.instance(machine, 2**60)
    replay(
        instance,
        step_rows(variants, schedule),
        starts_of(graph, schedule),
        figures_for(instance),
        waits,
        _ITERATIONS,
    )
    assert simulate(graph, schedule, machine=machine).figures.time == 12
    assert waits.tolist() == [12 - 7 - 2, 0]


@pytest.mark.parametrize(("capacity", "peaks"), [(2, [3, 2, 2]), (3, [3, 2, 2]), (4, [3, 4, 4])])
def test_a_transfer_that_was_waited_for_holds_no_copy(capacity: int, peaks: list[int]) -> None:
    """w, of 2 bytes, is copied from the host to the disk, then from the device to the host.

    With less than 4 bytes of host memory the second copy waits for the first. That has ended then, so the
    disk's copy is freed as soon as it is deleted. With 4 bytes nothing waits, and the disk's copy is still
    counted when the next iteration makes another.
    """
    draft = Draft("twice")
    w, x = draft.tensor("w", 2, Kind.PARAMETER), draft.tensor("x", 1)
    draft.operation("F", time=1, reads=[w], writes=[x])
    disk = Memory.DISK
    steps = [compute(0), offload(w, disk), delete(w, Memory.HOST), offload(w), delete(w, disk)]
    schedule = Schedule.of(steps, Initial(groups=(((Memory.DEVICE, Memory.HOST), frozenset({w})),)))
    graph = draft.graph()
    machine = Machine(host_capacity=capacity, links=Links(d2h=4.0, h2d=4.0, disk_read=4.0, disk_write=0.5))
    figures = simulate(graph, schedule, machine=machine).figures
    assert list(figures.peaks) == peaks
    time, excess, *found, _pinned, _elsewhere = compiled_figures(graph, schedule, machine, 3)
    assert (time, excess, found) == (figures.time, 0, peaks)


def test_all_that_one_run_makes_on_the_host_is_pinned() -> None:
    """C, on the CPU, begins g and k; F, on the device, adds to both, so both are pinned from C on.

    The next C runs during F.
    """
    draft = Draft("two")
    g, k = draft.tensor("g", 8), draft.tensor("k", 4)
    draft.operation("C", time=1, writes=[g, k], modes=[Mode("cpu", 3, 0, (g, k), on_host=True)])
    draft.operation("F", time=5, writes=[g, k], modes=[Mode("go", 7, 0, (g, k), writes_host=(g, k))])
    graph, machine = draft.graph(), Machine(pinned=16)
    schedule = Schedule.of([compute(0, 1), compute(1, 1)])
    figures = simulate(graph, schedule, machine=machine).figures
    assert (figures.time, figures.pinned_peak) == (7, 12)
    assert compiled_figures(graph, schedule, machine, 0) == [7, 0, 0, 12, 0, 12, 3]


def test_all_that_one_run_makes_on_the_host_is_waited_for() -> None:
    """F, on the device, makes g and k on the host; H, on the CPU, reads k; G, on the device, what H makes."""
    draft = Draft("two")
    k, y, g, h = (draft.tensor(name, 8) for name in "kygh")
    draft.operation("F", time=5, writes=[g, k], modes=[Mode("go", 7, 0, (g, k), writes_host=(g, k))])
    draft.operation("H", time=1, reads=[k], writes=[h], modes=[Mode("cpu", 2, 0, (h,), on_host=True)])
    draft.operation("G", time=1, reads=[h], writes=[y], modes=[Mode("direct", 1, 0, (y,), reads_host=(h,))])
    graph, machine = draft.graph(), Machine()
    schedule = Schedule.of([compute(0, 1), compute(1, 1), compute(2, 1)])
    assert simulate(graph, schedule, machine=machine).figures.time == 7 + 2 + 1
    assert compiled_figures(graph, schedule, machine, 0)[0] == 7 + 2 + 1


def test_a_copy_from_the_disk_is_pinned_if_the_next_iteration_fetches_it() -> None:
    """w starts on the host, is copied to the device and to the disk, and is read from the disk at the end: it
    is that copy on the host which crosses the link in the next iteration."""
    draft = Draft("around")
    w, x = draft.tensor("w", 4, Kind.PARAMETER), draft.tensor("x", 1)
    draft.operation("F", time=1, reads=[w], writes=[x])
    host, disk = Memory.HOST, Memory.DISK
    steps = [prefetch(w), offload(w, disk), delete(w, host), compute(0), delete(w)]
    steps += [prefetch(w, host), delete(w, disk)]
    schedule = Schedule.of(steps, Initial(host=frozenset({w})))
    graph = draft.graph()
    machine = Machine(pinned=16, links=Links(d2h=4.0, h2d=4.0, disk_read=4.0, disk_write=4.0))
    figures = simulate(graph, schedule, machine=machine).figures
    assert figures.least_pinned == 4
    time, excess, *peaks, pinned, _elsewhere = compiled_figures(graph, schedule, machine, 2**60)
    assert (time, excess, tuple(peaks), pinned) == (figures.time, 0, figures.peaks, figures.pinned_peak)


def test_the_steady_state_is_not_the_first_iterations_left_over() -> None:
    """At the end of the first iteration 2 bytes of a are left on the host, held by the slow write to the
    disk; at the end of every later one 2 bytes of w, held by an earlier copy to the host.

    So in the steady state the next copy of a to the host waits for nothing, and the writes to the disk, 8 s
    each, follow each other without a gap.
    """
    draft = Draft("left over")
    w, a, b = draft.tensor("w", 2, Kind.PARAMETER), draft.tensor("a", 4), draft.tensor("b", 4)
    draft.operation("F", time=1, writes=[a])
    draft.operation("H", time=1, writes=[b], modes=[Mode("cpu", 1, 0, (b,), on_host=True)])
    host, disk = Memory.HOST, Memory.DISK
    steps = [compute(0), offload(a), offload(a, disk), delete(a), delete(a, host), delete(w, host)]
    steps += [compute(1, 1), delete(b, host), offload(w), delete(a, disk)]
    schedule = Schedule.of(steps, Initial(groups=(((Memory.DEVICE, host), frozenset({w})),)))
    graph = draft.graph()
    links = Links(d2h=4.0, h2d=4.0, disk_read=4.0, disk_write=0.5)
    machine = Machine(host_capacity=6, disk_capacity=4, links=links, unpinned=True)
    assert simulate(graph, schedule, budget=6, machine=machine).figures.time == 8
    time, excess, *peaks, _pinned, _elsewhere = compiled_figures(graph, schedule, machine, 6)
    assert (time, excess, peaks) == (8, 0, [6, 6, 4])


def test_if_nothing_is_pinned_only_host_memory_is_limited() -> None:
    """Both simulators count no pinned bytes on machines whose copies are pageable."""
    seen = 0
    for seed in range(400):
        case = random_case(Random(seed))
        if case.machine is None:
            continue
        machine = replace(case.machine, pinned=None, unpinned=True)
        budget = 2**60 if case.budget is None else case.budget
        try:
            figures = simulate(case.graph, case.schedule, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        time, excess, *peaks, pinned, _elsewhere = compiled_figures(
            case.graph, case.schedule, machine, budget
        )
        assert (excess, tuple(peaks), pinned) == (0, figures.peaks, 0), seed
        assert time == pytest.approx(figures.time, rel=1e-12, abs=1e-12), seed
        seen += figures.host_peak > 0
    assert seen > 20


def test_the_device_works_and_waits() -> None:
    """Its queue is never busier than the turn is long. How long the others are busy is told as well."""
    seen = 0
    for seed in range(400):
        case = random_case(Random(seed))
        machine = case.machine or case.graph.machine or Machine()
        try:
            simulate(case.graph, case.schedule, machine=machine)
        except InvalidScheduleError:
            continue
        variants = VariantTable(case.graph)
        instance, steps = variants.instance(machine, 2**60), step_rows(variants, case.schedule)
        result = figures_for(instance)
        runs = instance.variants[steps[steps[:, 0] == Verb.COMPUTE, 1]]
        seconds = runs["seconds"][~runs["host"]]
        waits = np.full(len(seconds) + 1, 0.0)
        replay(instance, steps, starts_of(case.graph, case.schedule), result, waits, _ITERATIONS)
        assert result[-1] == pytest.approx(runs["seconds"][runs["host"]].sum() + _copied(case, machine))
        assert waits.min() >= 0
        assert waits[-1] == 0
        assert waits.sum() + seconds.sum() <= result[0] * (1 + 1e-9)
        seen += waits.any()
    assert seen > 50


def _copied(case: Case, machine: Machine) -> float:
    """Seconds of all transfers."""
    links, sizes = machine.links, case.graph.tensors.bytes
    link_of = {
        (Verb.OFFLOAD, Memory.HOST): links.d2h,
        (Verb.OFFLOAD, Memory.DISK): links.disk_write,
        (Verb.PREFETCH, Memory.DEVICE): links.h2d,
        (Verb.PREFETCH, Memory.HOST): links.disk_read,
    }
    schedule = case.schedule
    steps = zip(schedule.verbs.tolist(), schedule.targets.tolist(), schedule.wheres.tolist(), strict=True)
    moved = [(link_of.get((verb, where)), int(sizes[x])) for verb, x, where in steps if verb > Verb.DELETE]
    return sum(link.seconds(size) for link, size in moved if link)


@pytest.mark.parametrize("batch", range(4))
def test_the_clock_plays_any_waits(batch: int) -> None:
    """On any rows, with waits that reach back any number of turns, settled or not: to the last bit."""
    for seed in range(100 * batch, 100 * batch + 100):
        random = Random(seed)
        count = random.randint(1, 12)
        kinds = list(range(6)) if seed % 2 else [*range(6), int(Queue.COMM)]
        queues = [random.choice(kinds) for _ in range(count)]
        link = Link(float(max(RATES)) / 2)
        bare = Machine(links=Links(link, link, link, link, peers=Peers(link.rate, ranks=2)))
        machine = with_shared(random, bare) if seed % 3 else bare
        lanes = lanes_of(machine.hierarchy)
        seconds = [random.choice((0.0, 1.0, 2.0, random.random())) for _ in range(count)]
        slow = random.choice((0.0, 0.0, 1.0, 2.0))
        launches = [slow * random.random() if queue <= Queue.CPU else 0.0 for queue in queues]
        waits = {
            row: tuple(random.randrange(-3 * count, row) for _ in range(random.randint(1, 3)))
            for row in range(count)
            if random.random() < 0.4
        }
        turn = empty_iteration(count, 0, 0, *lane_arrays(machine))
        directions = [Queue.D2H if queue == Queue.COMM else queue for queue in queues]
        turn.rows[:count, QUEUE], turn.counts[0] = directions, count
        turn.rows[:count, TURN] = queues
        turn.seconds[:count, :2] = np.stack([seconds, launches], axis=1)
        ends = np.cumsum([0, *(len(waits.get(row, ())) for row in range(count))])
        turn.first[: count + 1] = ends
        turn.waits[: ends[-1]] = [other for row in range(count) for other in waits.get(row, ())]
        assert (
            clock.period(turn, _ITERATIONS) == judge.play(queues, seconds, launches, waits, lanes).period
        ), seed
