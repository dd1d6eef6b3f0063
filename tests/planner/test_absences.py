"""A schedule's decisions can be read back from it."""

from __future__ import annotations

from random import Random

import pytest
from memplan.graphs.machine import Memory
from memplan.planner.residence.absences import residence_of
from memplan.planner.residence.lives import lives
from memplan.planner.residence.residence import Place, Residence, residence_schedule
from memplan.planner.simulator.simulate import simulate
from test_residence import LINKED, random_runs, training


@pytest.mark.parametrize("seed", range(120))
def test_there_and_back(seed: int) -> None:
    random = Random(seed)
    graph = training(random.randint(1, 4), frozen=random.randint(0, 3), result=random.random() < 0.3)
    runs = random_runs(graph, random)
    away: dict[Place, Memory] = {
        (life.tensor, use.moment // 2): Memory.HOST
        for life in lives(graph, runs)
        for use in life.uses
        if use.memory == Memory.DEVICE and life.cyclic and random.random() < 0.5
    }
    schedule = residence_schedule(graph, Residence(runs, away))
    read = residence_of(graph, schedule)
    assert list(read.runs) == runs
    again = residence_schedule(graph, read)
    assert list(again) == list(schedule)
    assert again.initial == schedule.initial
    simulate(graph, again, machine=LINKED)
