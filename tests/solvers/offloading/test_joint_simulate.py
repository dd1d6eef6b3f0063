"""The joint search's compiled simulator gives the figures of the simulator on schedules that hold."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from memplan.graphs.machine import Machine
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.joint import simulate as joint_simulate
from memplan.solvers.offloading.joint.instance import Ways, starts_of
from strategies import random_case


@pytest.mark.parametrize("batch", range(4))
def test_same_figures(batch: int) -> None:
    seen = 0
    for seed in range(400 * batch, 400 * batch + 400):
        case = random_case(Random(seed))
        machine = case.machine or case.graph.machine or Machine()
        budget = 2**60 if case.budget is None else case.budget
        try:
            figures = simulate(case.graph, case.schedule, budget=budget, machine=machine).figures
        except InvalidScheduleError:
            continue
        ways = Ways(case.graph)
        result, steps = np.zeros(5), ways.steps(case.schedule)
        joint_simulate.simulate(
            ways.instance(machine, budget),
            steps,
            starts_of(case.graph, case.schedule),
            result,
            np.zeros(len(steps)),
        )
        assert result[1] == 0
        assert result[2:].tolist() == [figures.peak, figures.host_peak, figures.disk_peak], seed
        assert result[0] == pytest.approx(figures.time, rel=1e-6, abs=1e-9), seed
        seen += 1
    assert seen > 50
