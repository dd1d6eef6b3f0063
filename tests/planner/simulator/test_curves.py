"""Curves of bytes, one per memory, against the simulator's own peaks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from memplan.planner.simulator.curves import byte_curves
from memplan.planner.simulator.simulate import Figures, simulate
from strategies import random_case
from two_replays import judged


def test_the_first_curve_is_the_devices_and_none_passes_its_peak() -> None:
    """Where the schedule only computes, workspaces included, the largest value of a curve is the peak."""
    held = reached = 0
    for seed in range(400):
        case = random_case(Random(seed))
        if not isinstance(judged(case), Figures):
            continue
        outcome = simulate(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        curves = byte_curves(case.graph, case.schedule, budget=case.budget, machine=case.machine)
        assert np.array_equal(curves[0], outcome.device_curve), seed
        for curve, peak in zip(curves[:3], outcome.figures.peaks, strict=False):
            assert curve.min(initial=0) >= 0, seed
            assert curve.max(initial=0) <= peak, seed
            reached += bool(peak) and curve.max(initial=0) == peak
        if case.machine is not None:
            of_its_machine = replace(case.graph, machine=case.machine)
            assert np.array_equal(byte_curves(of_its_machine, case.schedule, budget=case.budget), curves), (
                seed
            )
        held += 1
    assert held > 50
    assert reached > held
