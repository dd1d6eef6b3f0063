"""Updates on the CPU start in the order of their deadlines, once their gradients are there."""

from __future__ import annotations

from memplan.solvers.offloading.offmate.schedule import HostUpdate, start_steps


def test_of_those_that_wait_the_first_deadline_comes_first() -> None:
    steps = [1.0] * 4
    assert start_steps([HostUpdate(0, 3, 1.0), HostUpdate(0, 2, 1.0)], steps) == [(1, 1), (2, 0)]
    assert start_steps([HostUpdate(2, 3, 1.0), HostUpdate(0, 2, 1.0)], steps) == [(1, 1), (3, 0)]
