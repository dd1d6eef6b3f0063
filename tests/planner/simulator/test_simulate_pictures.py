"""Small schedules whose figures can be read off a picture: both replays must give the closed form.

In the pictures a row is a queue and two characters are a second; `>` copies away from the device and
`<` towards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.simulate import Figures, simulate
from reference_replay import Accepted, replay

HOST, DISK = Memory.HOST, Memory.DISK
BUS = Machine(
    host_capacity=24, disk_capacity=16, links=Links(d2h=2.0, h2d=4.0, disk_read=1.0, disk_write=0.5)
)


def figures(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    *,
    budget: int | None = None,
    machine: Machine | None = BUS,
    initial: Initial | None = None,
) -> Figures:
    """What the simulator says, after the reference has said the same."""
    schedule = Schedule.of(steps, initial)
    simulated = simulate(graph, schedule, budget=budget, machine=machine).figures
    reference = replay(graph, schedule, budget=budget, machine=machine, turns=60)
    assert isinstance(reference, Accepted)
    assert simulated.time == pytest.approx(reference.time)
    assert simulated == Figures(
        time=simulated.time,
        peak=reference.peak,
        least_budget=reference.least_budget,
        host_peak=reference.peaks[1],
        disk_peak=reference.peaks[2],
        pinned_peak=reference.pinned_peak,
        least_pinned=reference.least_pinned,
        deeper_peaks=tuple(reference.peaks[3:]),
    )
    return simulated


def there_and_back() -> tuple[Graph, int, int]:
    """F1 ─x─▶ B, F2 ─y─▶ nothing; F1 2 s, F2 3 s, B 1 s; x and y 4 bytes: 2 s to the host, 1 s back."""
    draft = Draft("there-and-back")
    x, y = draft.tensor("x", 4), draft.tensor("y", 4)
    draft.operation("F1", time=2, writes=[x])
    draft.operation("F2", time=3, writes=[y])
    draft.operation("B", time=1, reads=[x], phase=Phase.BACKWARD)
    return draft.graph(), x, y


def test_a_late_prefetch_is_exposed() -> None:
    """The prefetch stands behind F2 and so waits for it.

    compute  F1F1F2F2F2F2..B       2 + 3 + 1 + 1
    d2h          >>>>
    h2d                <<
    """
    graph, x, y = there_and_back()
    steps = [compute(0), offload(x), compute(1), delete(x), delete(y), prefetch(x), compute(2)]
    steps += [delete(x), delete(x, HOST)]
    assert figures(graph, steps, budget=16).time == 2 + 3 + 1 + 1


def test_an_early_prefetch_is_hidden() -> None:
    """The prefetch stands before F2, which covers both transfers; both queues are busy beside it.

    compute  F1F1F2F2F2B        2 + 3 + 1
    d2h          >>>>
    h2d              <<
    """
    graph, x, y = there_and_back()
    steps = [compute(0), offload(x), delete(x), prefetch(x), compute(1), delete(y), compute(2)]
    steps += [delete(x), delete(x, HOST)]
    result = figures(graph, steps, budget=16)
    assert result.time == 2 + 3 + 1
    assert result.least_budget == 4 + 4


@pytest.mark.parametrize(
    ("budget", "time", "peak"),
    [
        (4, 2 + 2 + 3 + 1 + 1, 4),  # F2 waits for the offload: its output takes x's place
        (7, 2 + 2 + 3 + 1 + 1, 4),  # no more room than with 4
        (8, 2 + 3 + 1 + 1, 8),  # x's old copy may stay until the next iteration's F2
    ],
)
def test_a_pending_delete_holds_its_bytes_until_they_are_needed(budget: int, time: float, peak: int) -> None:
    """x goes to the host while F2 makes y.

    budget 4   compute  F1F1....F2F2F2..B       budget 8   F1F1F2F2F2..B
               d2h          >>>>                               >>>>
               h2d                    <<                             <<
    """
    graph, x, y = there_and_back()
    steps = [compute(0), offload(x), delete(x), compute(1), delete(y), prefetch(x), compute(2)]
    steps += [delete(x), delete(x, HOST)]
    result = figures(graph, steps, budget=budget)
    assert (result.time, result.peak, result.least_budget, result.host_peak) == (time, peak, 4, 4)


def test_pending_deletes_go_oldest_first_and_no_more_than_needed() -> None:
    """a and b (4 bytes, 2 s to the host each) are offloaded and deleted; F3 needs 4 bytes of 8.

    compute  F1F2..F3F3F3F3…      F3 (10 s) waits for a's offload alone, not for b's
    d2h        >>>>>>>>
    """
    draft = Draft("oldest-first")
    a, b, c = (draft.tensor(name, 4) for name in "abc")
    for made, seconds in ((a, 1), (b, 1), (c, 10)):
        draft.operation(f"F{made + 1}", time=seconds, writes=[made])
    steps = [compute(0), offload(a), delete(a), compute(1), offload(b), delete(b), compute(2)]
    result = figures(draft.graph(), steps, budget=8, machine=replace(BUS, host_capacity=8))
    assert result == Figures(1 + 2 + 10, 8, 4, 8, 0, 8, 8)


def test_what_crosses_the_link_is_pinned_and_waits_for_its_room() -> None:
    """b takes a's pinned place: its offload waits until a has come back. The state s, which only the CPU has,
    is on the host but not pinned.

    pinned   all                   4
    d2h      >>>>>>>>              >>>>        >>>>
    h2d          <<<<<<<<<<<<<<<<      <<<<<<<<    <<<<<<<<
    """
    draft = Draft("pinned")
    a, b, s = draft.tensor("a", 4), draft.tensor("b", 4), draft.tensor("s", 5, Kind.OPTIMIZER_STATE)
    draft.operation("F1", time=1, writes=[a])
    draft.operation("F2", time=1, writes=[b])
    draft.operation("B", time=1, reads=[a, b])
    draft.operation("U", time=1, mutates=[s], modes=[Mode("cpu", 1.0, 0, (), (), True)])
    steps = [
        compute(0),
        offload(a),
        delete(a),
        prefetch(a),
        delete(a, HOST),
        compute(1),
        offload(b),
        delete(b),
    ]
    steps += [prefetch(b), delete(b, HOST), compute(2), delete(a), delete(b), compute(3, 1)]
    initial, found = Initial(host=frozenset({s})), list[tuple[int, int, float]]()
    bus = replace(BUS, links=Links(d2h=2.0, h2d=1.0))
    for pinned in (None, 4):
        result = figures(draft.graph(), steps, machine=replace(bus, pinned=pinned), initial=initial, budget=8)
        found.append((result.host_peak, result.pinned_peak, result.time))
    assert [(host, pinned) for host, pinned, _time in found] == [(21, 16), (21, 4)]
    assert [time for _host, _pinned, time in found] == [1 + 2 + 4 + 4 + 1, 1 + 2 + 4 + 2 + 4 + 1]
    with pytest.raises(InvalidScheduleError, match="pinned host memory would hold 4 bytes, 3 are allowed"):
        simulate(draft.graph(), Schedule.of(steps, initial), machine=replace(bus, pinned=3))


def test_a_wait_for_one_delete_ends_the_transfer_for_its_other_copies() -> None:
    """y's place is x's: the wait for x's offload makes x's host copy deletable at once.

    device   x ....y            host (4 bytes)   x  then z, with no second wait
    """
    draft = Draft("one-wait")
    x, y = draft.tensor("x", 4), draft.tensor("y", 4)
    z = draft.tensor("z", 4)
    draft.operation("F1", time=1, writes=[x])
    draft.operation("F2", time=1, writes=[y])
    draft.operation("H", time=1, writes=[z], modes=[Mode("cpu", 1.0, 0, (z,), (), True)])
    steps = [compute(0), offload(x), delete(x), compute(1), delete(x, HOST), compute(2, 1)]
    result = figures(draft.graph(), steps, budget=4, machine=replace(BUS, host_capacity=8))
    assert (result.peak, result.host_peak) == (4, 4)
    assert result.time == 1 + 2 + 1


def test_nothing_is_pending_of_zero_bytes() -> None:
    """Y's room is the weight's; the empty tensor e, deleted before it, holds none and is not waited for.

    d2h      >>>>>>>>e                     the input, 8 bytes: 4 s, and e behind it
    h2d      <<                            the weight: 1 s
    compute    YYYYYYYYYYYYYYYYYYYY        10 s
    """
    draft = Draft("empty")
    i, w = draft.tensor("i", 8, Kind.INPUT), draft.tensor("w", 4, Kind.PARAMETER)
    e, y = draft.tensor("e", 0), draft.tensor("y", 4)
    draft.operation("E", time=0, writes=[e])
    draft.operation("Y", time=10, writes=[y])
    steps = [compute(0), offload(i), offload(e), delete(e), prefetch(w), delete(w), compute(1)]
    result = figures(draft.graph(), steps, budget=8 + 4, initial=Initial(host=frozenset({w})))
    assert (result.time, result.peak) == (1 + 10, 8 + 4)


def test_a_copy_made_anew_does_not_wait_for_the_old_one() -> None:
    """The prefetched copy of x is deleted unread; F makes x again, which R reads at once.

    compute  F F R                    1 s each
    d2h        >>>>
    h2d            <<<<<<<<           1 byte/s: 4 s, the slowest queue of the cycle
    """
    draft = Draft("anew")
    x = draft.tensor("x", 4)
    draft.operation("F", time=1, writes=[x])
    draft.operation("R", time=1, reads=[x])
    slow = replace(BUS, links=Links(d2h=2.0, h2d=1.0))
    steps = [compute(0), offload(x), delete(x), prefetch(x), delete(x), compute(0), compute(1)]
    assert figures(draft.graph(), steps, budget=16, machine=slow).time == 4


def test_the_period_is_the_slowest_queue_not_one_iteration() -> None:
    """The update's new weight goes to the host beside the next iteration's forward.

    compute  FFFFFFFFU.FFFFFFFFU.      F 4 s, U 1 s
    d2h                >>>>>>    >>>>  w: 6 bytes, 3 s: one iteration ends after 8 s, the next 5 s later

    With a copy of 7 s the update waits until the old weight has left: 1 s, then 7 s, and so on.
    """
    draft = Draft("update-overlap")
    w, g = draft.tensor("w", 6, Kind.PARAMETER), draft.tensor("g", 1, Kind.PARAMETER_GRADIENT)
    draft.operation("F", time=4, reads=[w], writes=[g])
    draft.operation("U", time=1, reads=[g], mutates=[w], phase=Phase.UPDATE)
    steps = [compute(0), compute(1), delete(g), offload(w)]
    both = Initial(both=frozenset({w}))
    assert figures(draft.graph(), steps, initial=both).time == 4 + 1
    slow = replace(BUS, links=Links(d2h=6 / 7))
    assert figures(draft.graph(), steps, initial=both, machine=slow).time == pytest.approx(7 + 1)


def test_the_cycle_closes_through_a_copy_that_stays() -> None:
    """H reads on the CPU the host copy that the last iteration's offload refreshed, and F needs H.

    cpu      H               H          1 s
    h2d        <               <        h: 2 bytes, 0.5 s
    compute     FFU             FFU     2 + 1 s
    d2h             >>>>>>              w: 6 bytes, 3 s: all in a row, 7.5 s
    """
    draft = Draft("closed-cycle")
    w, h = draft.tensor("w", 6, Kind.PARAMETER), draft.tensor("h", 2)
    draft.operation("H", time=9, reads=[w], writes=[h], modes=[Mode("cpu", 1.0, 0, (h,), (), True)])
    draft.operation("F", time=2, reads=[h])
    draft.operation("U", time=1, mutates=[w], phase=Phase.UPDATE)
    steps = [compute(0, 1), prefetch(h), compute(1), delete(h), delete(h, HOST), compute(2), offload(w)]
    result = figures(draft.graph(), steps, budget=8, initial=Initial(both=frozenset({w})))
    assert result.time == 1 + 0.5 + 2 + 1 + 3
    assert (result.peak, result.least_budget, result.host_peak) == (8, 8, 8)


def weight_on_host() -> tuple[Graph, int, int, list[ScheduleStep]]:
    """w lies on the host; F reads it, B reads it and makes its gradient g, U changes it.

    The steps: prefetch, F, delete (no transfer: the host's copy is fresh), prefetch, B, U, offload, delete.
    """
    draft = Draft("weight-on-host")
    w, g = draft.tensor("w", 8, Kind.PARAMETER), draft.tensor("g", 8, Kind.PARAMETER_GRADIENT)
    draft.operation("F", time=5, reads=[w])
    draft.operation("B", time=5, reads=[w], writes=[g], phase=Phase.BACKWARD)
    draft.operation("U", time=1, reads=[g], mutates=[w], phase=Phase.UPDATE)
    steps = [prefetch(w), compute(0), delete(w), prefetch(w), compute(1), compute(2), delete(g)]
    return draft.graph(), w, g, [*steps, offload(w), delete(w)]


def test_discounted_communication() -> None:
    """One offload, two prefetches, not two and two; nothing overlaps, since each waits for its neighbour.

    h2d      <<<<          <<<<                    8 bytes: 2 s
    compute      FFFFFFFFFF    BBBBBBBBBBUU        5 + 5 + 1 s
    d2h                                    >>>>>>>>4 s, then the next prefetch reads what it wrote
    """
    graph, w, _g, steps = weight_on_host()
    on_host = Initial(host=frozenset({w}))
    result = figures(graph, steps, budget=16, initial=on_host)
    assert result.time == 2 + 5 + 2 + 5 + 1 + 4
    assert (result.peak, result.least_budget, result.host_peak) == (16, 16, 8)


def test_the_update_on_the_cpu_saves_the_way_back() -> None:
    """U runs where the fresh weight is: g goes down (8 bytes, 4 s), no weight comes back.

    h2d      <<<<          <<<<
    compute      FFFFFFFFFF    BBBBBBBBBB
    d2h                                  >>>>>>>>
    cpu                                          UUUUUU    3 s, and the next prefetch waits for it
    """
    graph, w, g, _steps = weight_on_host()
    graph = replace(
        graph, operations=replace(graph.operations, modes={2: (Mode("cpu", 3.0, 1, (), (), True),)})
    )
    steps = [prefetch(w), compute(0), delete(w), prefetch(w), compute(1), delete(w), offload(g)]
    steps += [delete(g), compute(2, 1), delete(g, HOST)]
    result = figures(graph, steps, budget=16, initial=Initial(host=frozenset({w})))
    assert result.time == 2 + 5 + 2 + 5 + 4 + 3
    assert (result.least_budget, result.host_peak) == (16, 8 + 8 + 1)


def test_a_gradient_made_on_the_host_needs_no_room_on_the_device() -> None:
    """B writes g there itself, in 7 s for 5 s: no copy down, and U waits for B alone.

    h2d      <<<<          <<<<
    compute      FFFFFFFFFF    BBBBBBBBBBBBBB
    cpu                                      UUUUUU
    """
    graph, w, g, _steps = weight_on_host()
    direct, cpu = Mode("go", 7.0, 0, (g,), writes_host=(g,)), Mode("cpu", 3.0, 1, (), on_host=True)
    graph = replace(graph, operations=replace(graph.operations, modes={1: (direct,), 2: (cpu,)}))
    steps = [prefetch(w), compute(0), delete(w), prefetch(w), compute(1, 1), delete(w), compute(2, 1)]
    steps += [delete(g, HOST)]
    at_host = Initial(host=frozenset({w}))
    result = figures(graph, steps, budget=8, initial=at_host)
    assert result.time == 2 + 5 + 2 + 7 + 3
    assert (result.peak, result.least_budget, result.host_peak) == (8, 8, 8 + 8 + 1)
    assert result.pinned_peak == result.least_pinned == 8 + 8
    for pinned in (15, 0):
        machine = Machine(links=Links(d2h=2, h2d=Link(4)), pinned=pinned)
        with pytest.raises(InvalidScheduleError, match="pinned host memory"):
            simulate(graph, Schedule.of(steps, at_host), budget=8, machine=machine)


def test_only_the_device_reads_at_once_what_it_made_on_the_host() -> None:
    """D reads y behind F on the same queue; the copy to the disk waits for F, and D for the copy back."""
    draft = Draft("direct")
    y, z = draft.tensor("y", 4), draft.tensor("z", 1)
    draft.operation("F", time=3, writes=[y], modes=[Mode("go", 5, 0, (y,), writes_host=(y,))])
    draft.operation("D", time=1, reads=[y], writes=[z], modes=[Mode("dha", 2, 0, (z,), reads_host=(y,))])
    machine = Machine(host_capacity=8, links=Links(disk_write=1, disk_read=2))
    steps = [compute(0, 1), offload(y, DISK), delete(y, HOST), prefetch(y, HOST), compute(1, 1)]
    result = figures(draft.graph([z]), steps, machine=machine)
    assert result.time == pytest.approx(5 + 4 + 2 + 2)
    assert (result.peak, result.host_peak, result.disk_peak) == (1, 8, 4)
    alone = figures(draft.graph([z]), [compute(0, 1), compute(1, 1)], machine=None)
    assert alone == Figures(5 + 2, 1, 1, 4, 0, 4, 4)


def test_a_weight_read_where_it_lies_needs_no_room_on_the_device() -> None:
    """F reads w from the host, slower (8 s for 5 s), B as well: no transfer but the update's."""
    graph, w, g, _steps = weight_on_host()
    direct = {0: (Mode("direct", 8.0, 0, (), (w,)),), 1: (Mode("direct", 8.0, 0, (g,), (w,)),)}
    graph = replace(graph, operations=replace(graph.operations, modes=direct))
    steps = [compute(0, 1), compute(1, 1), prefetch(w), compute(2), delete(g), offload(w), delete(w)]
    result = figures(graph, steps, budget=16, initial=Initial(host=frozenset({w})))
    assert result.time == 8 + 8 + 2 + 1 + 4
    assert (result.least_budget, result.host_peak) == (16, 8)


def test_down_to_the_disk_and_up_again() -> None:
    """x takes every link once, each waiting for the one before; G (30 s) covers them all.

    compute     F GGGGGGGGGGGGGGG… B         x, 4 bytes: 2 s, 8 s, 4 s, 1 s
    d2h           >>
    disk_write      >>>>>>>>
    disk_read               <<<<
    h2d                         <
    """
    draft = Draft("disk")
    x = draft.tensor("x", 4)
    draft.operation("F", time=1, writes=[x])
    draft.operation("G", time=30)
    draft.operation("B", time=1, reads=[x])
    down = [offload(x), delete(x), offload(x, DISK), delete(x, HOST)]
    up = [prefetch(x, HOST), prefetch(x), delete(x, DISK)]
    covered = figures(draft.graph(), [compute(0), *down, *up, compute(1), compute(2)], budget=8)
    assert covered.time == 1 + 30 + 1
    bare = figures(draft.graph(), [compute(0), compute(1), *down, *up, compute(2)], budget=8)
    assert bare.time == 1 + 30 + 2 + 8 + 4 + 1 + 1
    assert covered.disk_peak == bare.disk_peak == 4


def test_a_copy_is_refreshed_by_one_transfer_after_the_other() -> None:
    """w's host copy is refreshed from the device (8 s), then from the disk (1 s), then H reads it.

    d2h         >>>>>>>>>>>>>>>>
    disk_read                   <<
    cpu                           HH
    h2d                             <<
    compute                           FF
    """
    draft = Draft("two-writers")
    w, h = draft.tensor("w", 8, Kind.BUFFER), draft.tensor("h", 8)
    draft.operation("H", time=5, reads=[w], writes=[h], modes=[Mode("cpu", 1.0, 0, (h,), (), True)])
    draft.operation("F", time=1, reads=[h])
    links = Links(d2h=1.0, h2d=8.0, disk_read=8.0, disk_write=8.0)
    steps = [offload(w, DISK), offload(w), prefetch(w, HOST), compute(0, 1), delete(w, DISK)]
    steps += [prefetch(h), compute(1), delete(h), delete(h, HOST)]
    result = figures(
        draft.graph(),
        steps,
        machine=replace(BUS, links=links),
        initial=Initial(both=frozenset({w})),
        budget=16,
    )
    assert result == Figures(8 + 1 + 1 + 1 + 1, 16, 16, 16, 8, 16, 16)


def test_contributions_are_added_in_place_and_made_again_beside() -> None:
    """g = A + C. A's second run would make its share again: g's bytes count twice while it runs.

    A ─▶ g ◀─ C      g 4, workspace of R 1
         └▶ R
    """
    draft = Draft("sum")
    g = draft.tensor("g", 4, Kind.GRADIENT)
    draft.operation("A", time=1, writes=[g])
    draft.operation("C", time=2, writes=[g])
    draft.operation("R", time=3, reads=[g], workspace=1)
    graph = draft.graph()
    once = figures(graph, [compute(1), compute(0), compute(2)], machine=None)
    assert once == Figures(1 + 2 + 3, 4 + 1, 4 + 1, 0, 0)
    twice = figures(graph, [compute(0), compute(1), compute(0), compute(2)], machine=None)
    assert twice == Figures(1 + 2 + 1 + 3, 4 + 4, 4 + 4, 0, 0)


def test_fast_forward_makes_only_what_its_mode_writes() -> None:
    """F makes x (1 byte) and what B needs (9 bytes), but in its quick mode x alone; then again in full.

    F ─x─▶ L ─l─▶ B        at L: x + l, at B: all
    └──saved──────┘
    """
    draft = Draft("fast-forward")
    x, saved, made = draft.tensor("x", 1), draft.tensor("saved", 9), draft.tensor("l", 1)
    draft.operation("F", time=2, writes=[x, saved], modes=[Mode("quick", 1.5, 0, (x,))])
    draft.operation("L", time=1, reads=[x], writes=[made], workspace=9)
    draft.operation("B", time=3, reads=[saved, made])
    steps = [compute(0, 1), compute(1), delete(x), compute(0), delete(x), compute(2)]
    result = figures(draft.graph(), steps, machine=None)
    assert result == Figures(1.5 + 1 + 2 + 3, 1 + 1 + 9, 1 + 1 + 9, 0, 0)


def test_what_is_in_flight_ends_with_the_next_turn() -> None:
    """Nobody waits for the copies of y to the host, which take longer than an iteration computes.

    compute F1F1F2F2F2B_                F1F1F2F2F2B_      a turn starts when the y of the one before the last
    d2h               yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy    has arrived: beside x and y one more y is held
    """
    graph, _x, y = there_and_back()
    steps = [compute(0), compute(1), offload(y), compute(2)]
    slow = figures(graph, steps, machine=Machine(links=Links(d2h=0.5, h2d=4.0)))
    assert slow.time == pytest.approx(8)
    assert slow.peak == 4 + 4 + 4
    assert slow.least_budget == 4 + 4


def test_what_a_prefetch_leaves_of_a_delete_is_not_free_at_once() -> None:
    """Budget 10. x takes 9 bytes and leaves; y (2 bytes) comes; B makes z (8 bytes) where x was.

    compute A_                  B_     1 s each; B waits for x, of whose 9 bytes the prefetch took only 1
    d2h     ··xxxxxxxxxxxxxxxxxx       9 s
    h2d                         yy
    """
    draft = Draft("rest")
    y = draft.tensor("y", 2, Kind.PARAMETER)
    x, z = draft.tensor("x", 9), draft.tensor("z", 8)
    draft.operation("A", time=1, writes=[x])
    draft.operation("B", time=1, writes=[z])
    steps = [compute(0), offload(x), delete(x), prefetch(y), compute(1), delete(y), delete(z)]
    machine = Machine(links=Links(d2h=1.0, h2d=2.0))
    at_first = Initial(host=frozenset({y}))
    assert figures(draft.graph(), steps, budget=10, machine=machine, initial=at_first).time == 1 + 9 + 1


@pytest.mark.parametrize("count", [1, 5])
def test_every_copy_takes_its_latency(count: int) -> None:
    """n tensors of b bytes leave, or as many weights come, beside computations of no time: n λ + n b / β."""
    size, machine = 4, Machine(links=Links(Link(2.0, 0.5), Link(4.0, 0.25)))
    draft = Draft("copies")
    made = [draft.tensor(f"x{k}", size) for k in range(count)]
    weights = [draft.tensor(f"w{k}", size, Kind.PARAMETER) for k in range(count)]
    for x, w in zip(made, weights, strict=True):
        draft.operation(f"F{x}", time=0, reads=[w], writes=[x])
    graph, runs = draft.graph(), range(count)
    leave = [*map(compute, runs), *map(offload, made), *map(delete, made), *(delete(x, HOST) for x in made)]
    assert figures(graph, leave, machine=machine).time == count * 0.5 + count * size / 2.0
    come = [*map(prefetch, weights), *map(compute, runs), *map(delete, weights)]
    below = Initial(host=frozenset(weights))
    assert figures(graph, come, machine=machine, initial=below).time == count * 0.25 + count * size / 4.0


def launched(*ways: tuple[float, float]) -> Graph:
    """A row of operations: (seconds, launch)."""
    draft = Draft("launched")
    for number, (seconds, launch) in enumerate(ways):
        draft.operation(f"F{number}", time=seconds, launch=launch)
    return draft.graph()


@pytest.mark.parametrize(
    ("ways", "time"),
    [
        (((3, 1), (2, 1), (1, 1)), 6),  # the thread runs ahead
        (((1, 2), (1, 2), (1, 2)), 6),  # it never does: the device waits for each launch
        (((0, 3), (4, 0), (1, 1)), 5),  # ahead of F0 from the second turn on
        (((0.5, 3), (4, 0.25), (1, 3)), 6.25),
    ],
)
def test_alone_the_slower_of_device_and_thread_counts(
    ways: tuple[tuple[float, float], ...], time: float
) -> None:
    """The second case:

    launch   F0F0F1F1F2F2F0F0    2 s each
    compute      F0..F1..F2..    1 s each
    """
    graph = launched(*ways)
    assert figures(graph, [compute(number) for number in range(len(ways))]).time == time


def test_launches_are_hidden_as_long_as_the_thread_is_ahead() -> None:
    """The device waits for a copy too: 7 s with no launches, and with all that together take no longer."""
    graph, x, y = there_and_back()
    steps = [compute(0), offload(x), delete(x), compute(1), delete(y), prefetch(x), compute(2)]
    steps += [delete(x), delete(x, HOST)]
    for launches, time in (((0, 0, 0), 7), ((2, 2, 2), 7), ((3, 2, 2.5), 7.5), ((0, 9, 1), 10)):
        slow = replace(graph, operations=replace(graph.operations, launch=np.array(launches, np.float64)))
        assert figures(slow, steps, budget=16).time == time, launches


def test_the_thread_launches_for_the_cpu_too() -> None:
    """H runs on the CPU once its launch has ended, behind that of F; the CPU's mode has a launch of its own.

    launch   FFFFHH
    compute      FF        F 1 s, launched in 2 s
    cpu            HHHH    H 2 s, launched in 1 s there (9 s on the device)
    """
    draft = Draft("cpu")
    draft.operation("F", time=1, launch=2)
    on_host = Mode("cpu", 2.0, 0, (), (), True, launch=1.0)
    draft.operation("H", time=9, launch=9, modes=[on_host])
    assert figures(draft.graph(), [compute(0), compute(1, 1)]).time == 3
    assert figures(draft.graph(), [compute(0), compute(1)]).time == 11
