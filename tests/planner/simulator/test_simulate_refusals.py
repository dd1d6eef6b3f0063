"""Every rule broken, as little as possible: the refusal names the step, the tensor and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.planner.errors import RULES, InvalidScheduleError
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    compute,
    delete,
    offload,
    prefetch,
)
from memplan.planner.simulator.simulate import simulate
from reference_replay import Accepted, Refused, replay

IN, W, X, Y = range(4)
A, C, R, U, V = (compute(operation) for operation in range(5))
R_DIRECT, V_ON_CPU = compute(R.target, 1), compute(V.target, 1)
HOST, DISK = Memory.HOST, Memory.DISK
WHOLE = [A, C, R, U, V]
MACHINE = Machine(host_capacity=5, links=Links(d2h=1.0, h2d=1.0))


def weighted_sum() -> Graph:
    """x is the sum of two random shares, y comes from it and the weight w, which U then changes and V reads.

    i ─▶ A ─┬─▶ x ─▶ R ─▶ y ─▶ U        A and C draw random numbers, R may run once;
    w ─▶ C ─┘    w ──┘     w ◀┄┄┘       R has a mode that reads w from the host,
                           └──▶ V       V one that runs on the CPU

    Bytes: i 1, w 2, x 4, y 8.
    """
    draft = Draft("weighted-sum")
    draft.tensor("i", 1, Kind.INPUT)
    draft.tensor("w", 2, Kind.PARAMETER)
    draft.tensor("x", 4)
    draft.tensor("y", 8)
    draft.operation("A", time=1, reads=[IN], writes=[X], random=True)
    draft.operation("C", time=1, reads=[W], writes=[X], random=True)
    direct = Mode("direct", 2.0, 0, (Y,), (W,))
    draft.operation("R", time=1, reads=[X, W], writes=[Y], recompute=False, modes=[direct])
    draft.operation("U", time=1, reads=[Y], mutates=[W], phase=Phase.UPDATE)
    draft.operation("V", time=1, reads=[W], modes=[Mode("cpu", 2.0, 0, (), (), True)])
    return draft.graph([Y])


class Fault(NamedTuple):
    rule: str
    step: int | None
    tensor: str | None
    steps: Sequence[ScheduleStep]
    initial: Initial = Initial()
    budget: int | None = None


ON_HOST, ON_BOTH = Initial(host=frozenset({W})), Initial(both=frozenset({W}))
FAULTS = {
    "an input has no place of its own": Fault("initial", None, "i", WHOLE, Initial(host=frozenset({IN}))),
    "nor has an activation": Fault("initial", None, "x", WHOLE, Initial(both=frozenset({X}))),
    "a weight has only one": Fault("initial", None, "w", WHOLE, Initial(frozenset({W}), frozenset({W}))),
    "a mode that is not there": Fault("unknown-mode", 2, None, [A, C, compute(R.target, 2)]),
    "a mode below zero": Fault("unknown-mode", 0, None, [compute(A.target, -1)]),
    "an input gone": Fault("reads-present", 3, "x", [A, C, delete(X), R]),
    "an input only on the device": Fault("reads-present", 2, "w", [A, C, R_DIRECT]),
    "an input only on the host": Fault("reads-present", 1, "w", [A, C], ON_HOST),
    "a share is missing": Fault("reads-complete", 1, "x", [A, R]),
    "a share lost with its copy": Fault("reads-complete", 3, "x", [A, delete(X), C, R]),
    "changed on the device, read on the host": Fault("reads-fresh", 4, "w", [A, C, R, U, V_ON_CPU], ON_BOTH),
    "no second run": Fault("runs-once", 3, None, [A, C, R, R]),
    "no second change": Fault("runs-once", 4, None, [A, C, R, U, U]),
    "read before the change": Fault("side-of-change", 0, "w", [V]),
    "read again after the change": Fault("side-of-change", 4, "w", [A, C, R, U, C]),
    "random numbers out of turn": Fault("random-order", 0, None, [C]),
    "nothing to delete": Fault("delete-present", 1, "x", [A, delete(X, HOST)]),
    "an input deleted": Fault("delete-input", 0, "i", [delete(IN)]),
    "an input's copy deleted": Fault("delete-input", 1, "i", [offload(IN), delete(IN, HOST)]),
    "the only copy deleted": Fault("delete-last-copy", 0, "w", [delete(W)]),
    "a stale copy is none": Fault("delete-last-copy", 5, "w", [*WHOLE, delete(W)], ON_BOTH),
    "nothing to copy": Fault("transfer-source", 0, "x", [offload(X)]),
    "half a sum to copy": Fault("transfer-source", 1, "x", [A, offload(X)]),
    "a stale copy to copy": Fault("transfer-source", 5, "w", [*WHOLE, prefetch(W)], ON_BOTH),
    "no such link": Fault("transfer-link", 1, "i", [offload(IN), offload(IN, DISK)]),
    "no room for an output": Fault("capacity", 2, None, [A, C, R], budget=14),
    "no room for a share made again": Fault("capacity", 2, None, [A, C, A], budget=10),
    "no room on the host": Fault("capacity", 3, None, [A, C, offload(X), offload(W)]),
    "no room at the start": Fault("capacity", None, None, WHOLE, budget=2),
    "an operation left out": Fault("runs-all", None, None, [A, C, R, U]),
    "a result deleted": Fault("results", None, "y", [*WHOLE, delete(Y)]),
    "a weight away from home": Fault("persistent-return", None, "w", [prefetch(W), *WHOLE], ON_HOST),
    "a copy too many": Fault("persistent-return", None, "w", [*WHOLE, offload(W)]),
    "a stale copy at home": Fault("persistent-return", None, "w", WHOLE, ON_BOTH),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broken_rule_is_named(fault: Fault) -> None:
    graph, schedule = weighted_sum(), Schedule.of(fault.steps, fault.initial)
    with pytest.raises(InvalidScheduleError) as refusal:
        simulate(graph, schedule, budget=fault.budget, machine=MACHINE)
    error = refusal.value
    assert (error.rule, error.step) == (fault.rule, fault.step)
    assert fault.tensor is None or error.tensor == fault.tensor
    assert str(error).count("\n") == 0
    assert RULES[fault.rule] in str(error)
    reference = replay(graph, schedule, budget=fault.budget, machine=MACHINE)
    assert reference == Refused(fault.step, frozenset({fault.rule}))


def test_every_rule_is_broken_here() -> None:
    """But that for addresses, which the simulator does not know: tests/cli/test_solve_addresses.py; and that
    for peers: test_simulate_peers.py."""
    assert {fault.rule for fault in FAULTS.values()} == set(RULES) - {"addresses", "peers"}


@pytest.mark.parametrize("initial", [Initial(), ON_BOTH, ON_HOST])
def test_the_whole_is_accepted(initial: Initial) -> None:
    """The graph that all these faults are made on has valid schedules."""
    steps = list(WHOLE)
    if initial == ON_HOST:
        steps = [prefetch(W), delete(W, HOST), *steps]
    if initial != Initial():
        steps = [*steps, offload(W)]
    if initial == ON_HOST:
        steps = [*steps, delete(W)]
    schedule = Schedule.of(steps, initial)
    assert simulate(weighted_sum(), schedule, budget=15, machine=MACHINE).figures.least_budget == 15
    assert isinstance(replay(weighted_sum(), schedule, budget=15, machine=MACHINE), Accepted)


def test_where_nothing_is_pinned_copies_are_slower_and_the_device_reads_no_host_memory() -> None:
    graph, pageable = weighted_sum(), Link(1.0, pageable=0.5)
    machine = Machine(links=Links(pageable, pageable))
    unpinned = machine.without_pinned()
    moving = Schedule.of([A, C, offload(X), delete(X), prefetch(X), R, U, V])
    figures = simulate(graph, moving, machine=unpinned).figures
    assert (figures.pinned_peak, figures.least_pinned, figures.host_peak) == (0, 0, 4)
    slower = simulate(graph, moving, machine=Machine(links=Links(0.5, 0.5))).figures
    assert replace(slower, pinned_peak=0, least_pinned=0) == figures
    direct = Schedule.of([A, C, offload(W), R_DIRECT, delete(W, HOST), U, V])
    simulate(graph, direct, machine=machine)
    with pytest.raises(InvalidScheduleError, match="reads w on the host, where nothing is pinned") as refusal:
        simulate(graph, direct, machine=unpinned)
    assert (refusal.value.rule, refusal.value.step, refusal.value.tensor) == ("capacity", 3, "w")


def test_where_nothing_is_pinned_the_device_writes_no_host_memory() -> None:
    draft = Draft("direct")
    y = draft.tensor("y", 4)
    draft.operation("F", time=1, writes=[y], modes=[Mode("go", 2, 0, (y,), writes_host=(y,))])
    machine = Machine(links=Links(Link(1.0, pageable=0.5), Link(1.0, pageable=0.5)))
    schedule = Schedule.of([compute(0, 1)])
    assert simulate(draft.graph([y]), schedule, machine=machine).figures.pinned_peak == 4
    with pytest.raises(
        InvalidScheduleError, match="writes y on the host, where nothing is pinned"
    ) as refusal:
        simulate(draft.graph([y]), schedule, machine=machine.without_pinned())
    assert (refusal.value.rule, refusal.value.step, refusal.value.tensor) == ("capacity", 0, "y")
