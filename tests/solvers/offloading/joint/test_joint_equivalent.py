"""Transfers derived on a line with shortened gaps are those derived on the line itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from direct_access import with_direct_gradients
from layered_training import LINKED, random_runs, training
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Link, Machine, Peers, Tier
from memplan.graphs.transformations.sharding import sharded
from memplan.planner.residency.lifetimes import count_moments, find_lifetimes
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.sequence import Run
from memplan.planner.simulator.footprint import Footprint
from memplan.solvers.offloading.joint.equivalent import Equivalent, shorten

FOUR = replace(LINKED, disk_name="cxl", deeper=(Tier("archive", None, Link(1.0), Link(1.0)),))
RANKS = Machine(links=replace(LINKED.links, peers=Peers(4.0, ranks=2)))


def _graph(random: Random, machine: Machine) -> Graph:
    graph = training(random.randint(3, 14), frozen=random.randint(0, 3), result=random.random() < 0.3)
    if machine is RANKS:
        return sharded(graph, Peers(4.0, ranks=2))
    return with_direct_gradients(graph, 2.0) if random.random() < 0.4 else graph


def _decided(graph: Graph, runs: list[Run], random: Random, deepest: int) -> dict[TensorUse, int]:
    places = [(x, position) for x in range(len(graph.tensors)) for position in range(-1, len(runs))]
    return {place: random.randint(1, deepest) for place in places if random.random() < 0.5}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("machine", [LINKED, FOUR, RANKS], ids=["three", "four", "ranks"])
@pytest.mark.parametrize("seed", range(60))
def test_what_is_derived_once_is_what_each_tensor_derives(machine: Machine, seed: int) -> None:
    random = Random(seed)
    graph = _graph(random, machine)
    shortened = shared = 0
    runs_of_all = [random_runs(graph, random) for _ in range(3)]
    for runs in runs_of_all:
        parts = Equivalent(Footprint(graph, machine.hierarchy), machine.hierarchy, count_moments(len(runs)))
        lifetimes = find_lifetimes(graph, runs)
        for _ in range(3):
            deepest = 1 if machine is RANKS else len(machine.hierarchy) - 1
            residency = Residency(runs, _decided(graph, runs, random, deepest))
            for x in range(len(graph.tensors)):
                own = [each for each in lifetimes if each.tensor == x][::-1]
                short = shorten(own, len(runs))
                shortened += short.runs < len(runs)
                before = len(parts._derived)  # pyright: ignore[reportPrivateUsage]
                got, want = parts.part(x, short, residency.offloaded), parts.part_at(x, residency, own)
                shared += len(parts._derived) == before  # pyright: ignore[reportPrivateUsage]
                for part, other in zip(got, want, strict=True):
                    np.testing.assert_array_equal(part, other)
    assert shared
    assert shortened or max(map(len, runs_of_all)) < 20
