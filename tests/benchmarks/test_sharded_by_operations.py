"""The two models of sharded training count the same schedule with the same seconds and bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from memplan.graphs.generators import chain
from memplan.graphs.machine import Memory, Peers
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.sharded import fsdp_prefetch
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import Options, Problem

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sharded_by_operations import Models, as_operations, both_models, differences

RATES = (2.0**19, 2.0**21, 2.0**24)
PREFETCH = Options(None, fsdp_prefetch.Settings())


def layers(rate: float, latency: float = 0.0) -> Models:
    return both_models(chain(8, seed=3), Peers(rate, latency, ranks=8))


@pytest.mark.parametrize("rate", RATES)
def test_both_models_count_the_same_for_policies_if_no_collectives_are_joined(rate: float) -> None:
    models = layers(rate)
    assert len(list(policy_schedules(Problem(models.spread, 1)))) == 6
    assert not list(differences(models))


def test_joined_collectives_change_the_seconds_alone() -> None:
    models = layers(RATES[-1], latency=2.0**-6)
    assert len(list(differences(models))) == 6
    for _policy, schedule, figures in policy_schedules(Problem(models.spread, 1)):
        other = simulate(models.operations, as_operations(models, schedule)).figures
        assert figures.time != other.time
        assert (figures.peak, figures.least_budget) == (other.peak, other.least_budget)


@pytest.mark.parametrize("rate", RATES)
def test_gathers_for_the_next_iteration_come_first_as_operations(rate: float) -> None:
    models = layers(rate)
    found = fsdp_prefetch.solve(Problem(models.spread, 2**50), PREFETCH).schedule
    assert found.initial.at(Memory.DEVICE, Memory.PEERS)
    other = simulate(models.operations, as_operations(models, found)).figures
    assert simulate(models.spread, found).figures.time <= other.time
