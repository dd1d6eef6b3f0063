"""MemFerry on graphs: what it reads of them, schedules that hold, honest refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import isfinite
from random import Random
from typing import Any

import numpy as np
import pytest
from direct_access import with_direct_access
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link, Links, Machine
from memplan.graphs.transformations.updates import ADAMW, SGD, When, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.residency.prefetch_placement import simulate_residency
from memplan.planner.schedule.schedule import Verb
from memplan.planner.schedule.sequence import in_default_mode
from memplan.planner.simulator.simulate import Figures, simulate
from memplan.solvers.links import linked_machine
from memplan.solvers.offloading.layers.early_updates import early_updates
from memplan.solvers.offloading.memferry import memferry
from memplan.solvers.offloading.memferry.estimate import Treatment
from memplan.solvers.offloading.memferry.layers import costs_of, weight_layers
from memplan.solvers.offloading.memferry.plan import Plan
from memplan.solvers.offloading.memferry.search import MemFerrySearch
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, SolverResult, Status
from memplan.solvers.registry import run as registry
from training_graphs import training

MiB = 2**20


def machine(rate: float = MiB, host: int | None = None) -> Machine:
    return Machine(host_capacity=host, links=Links(d2h=rate, h2d=rate))


def instance(seed: int, *, direct: bool = True) -> Problem:
    """A chain of up to 4 layers, updates on the CPU too, on a machine of some speed, with the plain peak."""
    random = Random(seed)
    times: list[When] = ["after", "in-backward"]
    graph = with_updates(
        chain(random.randint(2, 4), seed=seed),
        optimizer=random.choice([ADAMW, SGD]),
        when=random.choice(times),
        device_rate=20 * MiB,
        host_rate=random.choice([0.3, 1, 10]) * MiB,
    )
    rate = random.choice([0.2, 0.5, 1, 3]) * MiB
    if direct:
        graph = with_direct_access(graph, rate, rereads=random.choice([1.0, 1.5, 3.0]))
    return Problem(graph, baseline(graph).peak, machine(rate))


def solved(problem: Problem, **settings: str | float) -> Figures:
    chosen = memferry.Settings(**{"flips": 5, **settings})
    answer: SolverResult = memferry.solve(problem, Options(None, chosen))
    return simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine).figures


def least_budget(problem: Problem, **settings: str | float) -> int | None:
    """What a refusal names, None without one."""
    try:
        solved(problem, **settings)
    except InfeasibleError as refusal:
        return refusal.least
    return None


def plan_of(problem: Problem) -> Plan:
    runs = in_default_mode(range(len(problem.graph.operations)))
    return Plan("a solver", problem.graph, linked_machine("a solver", problem, "weights"), runs, reserve=0.0)


@settings(max_examples=100, deadline=None)
@given(layers=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_layers_hold_every_weight_that_is_read_and_every_second(layers: int, seed: int) -> None:
    """On graphs with tied weights and operations of several weights: the parts add up to the whole."""
    graph = with_direct_access(training(layers, seed), 50.0)
    runs = in_default_mode(range(len(graph.operations)))
    found = weight_layers(graph, runs)
    costs = costs_of(graph, runs, found, Link(10.0))
    weights = [x for layer in found for x in layer.weights]
    assert len(weights) == len(set(weights))
    assert sum(layer.size for layer in costs) == sum(int(graph.tensors.bytes[x]) for x in weights)
    assert all(isfinite(layer.direct_forward + layer.direct_backward) for layer in costs)
    assert [layer.forward for layer in found] == sorted(layer.forward for layer in found)
    phase, seconds = graph.operations.phase, graph.operations.time
    for backward, total in (
        (False, sum(c.forward + c.between for c in costs)),
        (True, sum(c.backward + c.between_backward for c in costs)),
    ):
        part = np.flatnonzero(phase == Phase.BACKWARD if backward else phase < Phase.BACKWARD).tolist()
        positions = [p for layer in found for p in (layer.backward if backward else layer.forward)]
        starts = [row[0] for layer in found if (row := layer.backward if backward else layer.forward)]
        outside = [o > max(starts) if backward else o < min(starts) for o in part]
        left = [o for o, out in zip(part, outside, strict=True) if out and o not in positions]
        assert total == pytest.approx(seconds[part].sum() - seconds[left].sum())


def test_direct_access_to_a_weight_that_two_operations_read_with_others() -> None:
    """w is read with u by one operation and alone by another: one layer, and its seconds are both's."""
    draft = Draft("shared")
    u, w = draft.tensor("u", 30, Kind.PARAMETER), draft.tensor("w", 10, Kind.PARAMETER)
    x, y, z = (draft.tensor(name, 1) for name in "xyz")
    draft.operation("A", time=1.0, reads=[u, w], writes=[x])
    draft.operation("B", time=2.0, reads=[x], writes=[y])
    draft.operation("C", time=4.0, reads=[y, w], writes=[z])
    graph = with_direct_access(draft.graph([z]), 5.0)
    runs = in_default_mode(range(3))
    (layer,) = weight_layers(graph, runs)
    (costs,) = costs_of(graph, runs, [layer], Link(20.0))
    assert set(layer.weights) == {u, w}
    assert (costs.fetch, costs.forward, costs.between) == (2.0, 5.0, 2.0)
    assert costs.direct_forward == 40 / 5 + 4.0


@pytest.mark.scripts
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    share=st.floats(0.2, 1.0),
    direct=st.booleans(),
    choice=st.sampled_from(["exact", "published"]),
    reserve=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
)
def test_schedules_hold(seed: int, share: float, direct: bool, choice: str, reserve: float) -> None:
    problem = instance(seed, direct=direct)
    problem = replace(problem, budget=int(problem.budget * share))
    least = least_budget(problem, choice=choice, reserve=reserve)
    if least is not None:
        assert least > problem.budget
        problem = replace(problem, budget=least)
    figures = solved(problem, choice=choice, reserve=reserve)
    assert figures.peak <= problem.budget
    assert figures.time >= time_bound(problem.graph) * (1 - 1e-9)


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", [10, 16, 19, 24])
def test_a_refusal_names_the_least_budget(seed: int, reserve: float) -> None:
    """Kept gradients count once, and their buffers leave no prefetch without room."""
    problem = instance(seed, direct=False)
    least = least_budget(replace(problem, budget=1), reserve=reserve)
    assert least is not None
    assert solved(replace(problem, budget=least), reserve=reserve).least_budget <= least
    assert least_budget(replace(problem, budget=least - 1), reserve=reserve) == least


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_default_is_never_slower_than_the_published_choice(seed: int) -> None:
    problem = instance(seed)
    if least_budget(problem, choice="published") is None:
        assert solved(problem).time <= solved(problem, choice="published").time


def test_where_weights_are_used_is_what_the_ways_say() -> None:
    """Over a slow link, three layers, one in each way."""
    graph = with_updates(
        chain(3, uniform=True), optimizer=ADAMW, when="in-backward", device_rate=MiB, host_rate=MiB
    )
    graph = with_direct_access(graph, MiB)
    plan = plan_of(Problem(graph, 10**9, machine()))
    found = plan.schedule([Treatment.DHA, Treatment.DFGB, Treatment.GFGB], 10**9)
    assert found is not None
    steps = [step for step in found[0] if step.verb != Verb.DELETE]
    names = graph.tensors.name
    fetched = [names[step.target] for step in steps if step.verb == Verb.PREFETCH]
    assert fetched == ["w3", "w2"]
    modes = {graph.operations.name[step.target]: step.where for step in steps if step.verb == Verb.COMPUTE}
    host = {
        name
        for name, k in modes.items()
        if k and graph.operation(graph.operation_index[name]).modes[k - 1].reads_host
    }
    assert host == {"F1", "B1", "F2"}
    assert {name for name in modes if name.endswith("/update") and modes[name]} == {
        "w1/update",
        "w2/update",
        "w3/update",
    }
    assert {names[step.target] for step in steps if step.verb == Verb.OFFLOAD} == {"dw1", "dw2", "dw3"}
    states = {x for x, kind in enumerate(graph.tensors.kind) if kind == Kind.OPTIMIZER_STATE}
    assert states <= found[0].initial.host


def test_weights_that_are_fetched_twice_are_on_the_device_one_layer_at_a_time() -> None:
    """Without direct access, in little more than the activations and two layers: twice, or not at all."""
    graph = with_updates(
        chain(6, uniform=True), optimizer=ADAMW, when="in-backward", device_rate=MiB, host_rate=MiB
    )
    problem = Problem(graph, 10**9, machine(8 * MiB))
    plan = plan_of(problem)

    def least(treatment: Treatment) -> int:
        found = simulate_residency(graph, machine(8 * MiB), 10**9, plan.residency(plan.all_in(treatment)))
        assert found is not None
        return found[1].least_budget

    tight = replace(problem, budget=least(Treatment.TWICE))
    assert solved(tight, activations="keep").peak <= tight.budget
    with pytest.raises(InfeasibleError):
        solved(tight, activations="keep", twice=False)
    assert least(Treatment.GFGB) >= tight.budget + 3 * MiB


def test_at_the_time_limit_the_best_so_far_is_given() -> None:
    problem = instance(3)
    answer = memferry.solve(problem, Options(0.0))
    assert answer.status == Status.FEASIBLE
    simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine)
    assert memferry.solve(problem, Options(None, None, cancelled=lambda: True)).status == Status.FEASIBLE


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
def test_kept_gradients_stay_to_the_end(reserve: float) -> None:
    """Over a link so slow that writing any gradient takes longer than making it: as many as may stay, do."""
    graph = with_updates(
        chain(4, uniform=True), optimizer=SGD, when="in-backward", device_rate=MiB, host_rate=MiB
    )
    answer = memferry.solve(
        Problem(graph, 10**9, machine(0.1 * MiB)), Options(None, memferry.Settings(reserve=reserve))
    )
    gradients = {x for x, kind in enumerate(graph.tensors.kind) if kind == Kind.PARAMETER_GRADIENT}
    deleted = {step.target for step in answer.schedule if step.verb == Verb.DELETE and not step.where}
    assert len(gradients - deleted) == 4 * reserve


def test_kept_gradients_take_their_room_once() -> None:
    """Room for weights is what kept gradients leave of the budget: the fastest of all choices is found."""
    problem = instance(9)
    problem = replace(problem, budget=problem.budget * 7 // 10)
    chosen: dict[str, Any] = {"activations": "checkpoint", "gradients": "copied", "flips": 0}
    settings = memferry.Settings(reserve=1.0, **chosen)
    plan, *_ = MemFerrySearch(problem, settings, Options(None, settings)).plans
    found = [plan.schedule(row, problem.budget) for row in product(Treatment, repeat=len(plan.costs))]
    best = min(figures.time for _schedule, figures in filter(None, found))
    assert solved(problem, reserve=1.0, **chosen).time == pytest.approx(best, rel=1e-9)
    graph, linked = problem.graph, plan.linked
    without = Plan("a solver", graph, linked, plan.baseline, reserve=0.0)
    assert without.extra <= plan.extra < without.extra + int(graph.tensors.bytes[plan.kept].sum())


@pytest.mark.parametrize("update", ["none", "end"])
def test_tied_weights_and_dropout(update: str) -> None:
    taken = 0
    for seed in range(6):
        graph = training(5, seed)
        if update == "end":
            results = [x for x in graph.results if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT]
            pairs = {int(graph.tensors.name[x].removeprefix("g.")): x for x in results}
            graph = with_updates(
                graph, optimizer=ADAMW, when="after", device_rate=1e3, host_rate=1e3, gradients=pairs
            )
        problem = Problem(with_direct_access(graph, 300.0), baseline(graph).peak, machine(300.0))
        figures = solved(problem)
        assert figures.peak <= problem.budget
        taken += 1
    assert taken == 6


def test_updates_run_early_and_stay_on_their_side() -> None:
    """No run that an update must wait for stands behind it, and the last of them right before it."""
    for seed in range(40):
        graph = training(5, seed, update="end")
        runs = early_updates(graph, in_default_mode(range(len(graph.operations))))
        assert sorted(runs) == in_default_mode(range(len(graph.operations)))
        phase, order = graph.operations.phase, [operation for operation, _mode in runs]
        others = [o for o in order if phase[o] != Phase.UPDATE]
        assert others == sorted(others)
        place = {o: p for p, o in enumerate(order)}
        for update in (o for o in order if phase[o] == Phase.UPDATE):
            waits = [o for x in graph.read_lists[update] for o in graph.producers[x].tolist()]
            for x in graph.mutate_lists[update]:
                waits += [o for o in graph.consumers[x].tolist() if o < update]
            last = max(place[o] for o in waits)
            assert last < place[update]
            assert all(phase[o] == Phase.UPDATE for o in order[last + 1 : place[update]])


def test_the_registry_knows_it() -> None:
    problem = instance(7)
    found = registry.solve("memferry", problem)
    assert found.lower_bound is not None
    assert found.figures.time >= found.lower_bound
    assert found.status in (Status.HEURISTIC, Status.OPTIMAL)


@pytest.mark.parametrize(
    ("graph", "on", "message"),
    [
        (chain(3, seed=1), Machine(), "memferry needs a machine with links d2h and h2d"),
        (layered(9), machine(), "memferry takes training graphs"),
        (training(4, 3, update="end"), machine(), "memferry updates weights on the CPU"),
        (instance(1).graph, machine(host=10), "of host memory; the machine has 10 B"),
    ],
    ids=["no links", "no training", "updates on the device alone", "small host"],
)
def test_refusals(graph: Graph, on: Machine, message: str) -> None:
    with pytest.raises(NotAcceptedError, match=message) as refusal:
        solved(Problem(graph, baseline(graph).peak, on))
    assert "\n" not in str(refusal.value)


def test_weights_larger_than_the_device_are_refused_with_the_least_budget() -> None:
    with pytest.raises(InfeasibleError, match="the smallest budget found by memferry is"):
        solved(replace(instance(1), budget=1000))


@pytest.mark.parametrize(
    "wrong", [{"choice": "best"}, {"activations": "no"}, {"reserve": 2.0}, {"flips": -1}]
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        memferry.Settings(**wrong)
