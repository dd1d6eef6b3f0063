"""STRONGHOLD's schedules: valid within the budget, as fast as the model says where it says hidden, honest
refusals.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine, Memory
from memplan.graphs.transformations.updates import ADAMW, SGD, Optimizer, When, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import time_bound
from memplan.planner.residency.prefetch_placement import build_schedule
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.links import linked_machine
from memplan.solvers.offloading.layers.runs import all_kept, always_kept, layer_runs
from memplan.solvers.offloading.layers.training import training_layers
from memplan.solvers.offloading.stronghold import stronghold
from memplan.solvers.offloading.stronghold.schedule import window_residency
from memplan.solvers.offloading.stronghold.stronghold import layer_figures, room_for_windows
from memplan.solvers.offloading.stronghold.terms import fits
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, SolverResult, Status
from memplan.solvers.registry import run as registry
from training_graphs import training

MiB = 2**20
MOMENTUM = Optimizer("sgd-momentum", ("momentum_buffer",))


def machine(rate: float = 3 * MiB, host: int | None = None) -> Machine:
    return Machine(host_capacity=host, links=Links(d2h=rate, h2d=rate))


def instance(seed: int) -> Problem:
    """A chain of up to 7 layers with updates, on a machine of some speed, with the plain schedule's peak."""
    random = Random(seed)
    times: list[When] = ["after", "in-backward"]
    graph = with_updates(
        chain(random.randint(2, 7), seed=seed),
        optimizer=random.choice([ADAMW, SGD, MOMENTUM]),
        when=random.choice(times),
        device_rate=random.choice([2, 20]) * MiB,
        host_rate=random.choice([None, 0.2 * MiB, MiB, 10 * MiB]),
    )
    return Problem(graph, baseline(graph).peak, machine(random.choice([0.3, 1, 3, 10]) * MiB))


def solved(problem: Problem, **settings: Any) -> tuple[SolverResult, str]:
    lines: list[str] = []
    answer = stronghold.solve(problem, Options(None, stronghold.Settings(**settings), lines.append))
    return answer, lines[-1]


def least_budget(problem: Problem) -> int | None:
    """What a refusal names, None without one."""
    try:
        solved(problem)
    except InfeasibleError as refusal:
        return refusal.least
    return None


@pytest.mark.scripts
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    share=st.floats(0.2, 1.0),
    windows=st.sampled_from(["analytic", "simulated"]),
)
def test_schedules_hold_and_hidden_is_hidden(seed: int, share: float, windows: str) -> None:
    problem = instance(seed)
    problem = replace(problem, budget=int(problem.budget * share))
    least = least_budget(problem)
    if least is not None:
        assert least > problem.budget
        problem = replace(problem, budget=least)
    answer, line = solved(problem, windows=windows)
    figures = simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine).figures
    assert figures.time >= time_bound(problem.graph) * (1 - 1e-9)
    reported = re.search(r"\((.*)\): (\S+) s simulated, (\S+) s by P1", line)
    assert reported is not None
    assert float(reported[2]) == pytest.approx(figures.time, rel=1e-5)
    if reported[1].startswith("hidden"):
        assert float(reported[3]) == pytest.approx(figures.time, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 7), checkpoint=st.booleans())
def test_a_window_that_fits_by_the_model_fits(seed: int, size: int, checkpoint: bool) -> None:
    """With the least room that (1c) and (2c) allow, the simulated peak is within the budget."""
    problem = instance(seed)
    layers = training_layers("a solver", problem.graph)
    size = min(size, len(layers.layers))
    plan = layer_runs(layers, (always_kept if checkpoint else all_kept)(layers))
    model = layer_figures(layers, plan, linked_machine("a solver", problem, "weights"))
    extra = -room_for_windows(layers, plan.runs, 0)
    total = sum(layer.weights + layer.gradients + layer.states for layer in model)
    room = next(r for r in range(0, total + MiB // 8, MiB // 8) if fits(model, size, r))
    schedule = build_schedule(problem.graph, window_residency(layers, plan, size))
    figures = simulate(problem.graph, schedule, machine=problem.machine).figures
    assert figures.least_budget <= extra + room


def test_only_the_window_is_on_the_device() -> None:
    """At each run at most m + 1 layers' weights are there: those of the window, and the one being fetched."""
    graph = with_updates(
        chain(9, uniform=True), optimizer=ADAMW, when="in-backward", device_rate=MiB, host_rate=MiB
    )
    layers = training_layers("a solver", graph)
    size = 3
    residency = window_residency(layers, layer_runs(layers, all_kept(layers)), size)
    schedule = build_schedule(graph, residency)
    simulate(graph, schedule, machine=machine())
    weights = {x for layer in layers.layers for x in layer.weights}
    there = {x for x in weights if x not in schedule.initial.host}
    assert there == {x for layer in layers.layers[:size] for x in layer.weights}
    fetched = offloaded = 0
    for verb, target, where in schedule:
        if target in weights and verb == Verb.PREFETCH:
            there.add(target)
            fetched += 1
        elif target in weights and verb == Verb.DELETE and where == Memory.DEVICE:
            there.remove(target)
        offloaded += target in weights and verb == Verb.OFFLOAD
        assert len(there) <= size + 1
    assert fetched == 2 * (9 - size)
    assert offloaded == size, "only what is updated on the device goes back"


def with_disk(rate: float, disk: float, host: int | None = None) -> Machine:
    return Machine(host_capacity=host, links=Links(rate, rate, disk, disk))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 6), checkpoint=st.booleans())
def test_what_is_out_of_the_window_lies_on_the_disk(seed: int, size: int, checkpoint: bool) -> None:
    """The device's bytes are those without a disk; with a disk as fast as one likes, so is the time."""
    problem = instance(seed)
    assert problem.machine is not None
    link = problem.machine.links.h2d
    assert link is not None
    layers = training_layers("a solver", problem.graph)
    size = min(size, len(layers.layers) - 1)
    plan = layer_runs(layers, (always_kept if checkpoint else all_kept)(layers))
    found = {}
    for states in (Memory.HOST, Memory.DISK):
        schedule = build_schedule(problem.graph, window_residency(layers, plan, size, states))
        fast = with_disk(link.rate, 1e15)
        found[states] = simulate(problem.graph, schedule, machine=fast).figures, schedule
    (on_host, _schedule), (on_disk, schedule) = found[Memory.HOST], found[Memory.DISK]
    assert on_disk.least_budget == on_host.least_budget
    assert on_disk.time == pytest.approx(on_host.time, rel=1e-6)
    beyond = {x for layer in layers.layers[size:] for x in layer.weights}
    within = {x for layer in layers.layers[:size] for x in layer.weights}
    assert beyond - within <= schedule.initial.disk
    assert not within & schedule.initial.disk
    if layers.host_modes([o for layer in layers.layers[size:] for o in layer.updates]) is not None:
        states_beyond = {x for layer in layers.layers[size:] for x in layer.states}
        assert states_beyond <= schedule.initial.disk


def test_the_disk_is_taken_where_the_host_is_too_small() -> None:
    graph = with_updates(
        chain(9, uniform=True), optimizer=ADAMW, when="in-backward", device_rate=MiB, host_rate=MiB
    )
    roomy = Problem(graph, int(0.5 * baseline(graph).peak), with_disk(3 * MiB, 2 * MiB))
    least = least_budget(roomy)
    roomy = replace(roomy, budget=roomy.budget if least is None else least)
    answer, line = solved(roomy)
    assert "on the disk" not in line
    most = simulate(graph, answer.schedule, machine=roomy.machine).figures.host_peak
    tight = replace(roomy, machine=with_disk(3 * MiB, 2 * MiB, most // 2))
    answer, line = solved(tight)
    assert "the others on the disk" in line
    figures = simulate(graph, answer.schedule, budget=tight.budget, machine=tight.machine).figures
    assert figures.host_peak <= most // 2
    assert figures.disk_peak > 0
    with pytest.raises(NotAcceptedError, match="of host memory"):
        solved(tight, states="host")
    with pytest.raises(NotAcceptedError, match="needs a machine with links disk_read, disk_write"):
        solved(replace(roomy, machine=machine()), states="disk")


def test_everything_in_the_window_is_the_plain_schedule() -> None:
    graph = with_updates(chain(4, seed=2), optimizer=ADAMW, when="after", device_rate=MiB, host_rate=MiB)
    problem = Problem(graph, 2 * baseline(graph).peak, machine(1.0))
    answer, line = solved(problem)
    assert "a window of 4 of 4 layers (hidden)" in line
    assert not any(step.verb in (Verb.OFFLOAD, Verb.PREFETCH) for step in answer.schedule)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("update", ["none", "end", "early"])
def test_tied_weights_dropout_and_updates_without_a_host_mode(update: str) -> None:
    taken = 0
    for seed in range(25):
        graph = training(6, seed, update=update)
        problem = Problem(graph, int(0.8 * baseline(graph).peak), machine(300.0))
        try:
            answer, _line = solved(problem)
        except (NotAcceptedError, InfeasibleError):
            continue
        simulate(graph, answer.schedule, budget=problem.budget, machine=problem.machine)
        taken += 1
    assert taken >= 3


def test_gradients_that_nothing_updates_from_go_to_the_host() -> None:
    graph = chain(5, seed=1)
    answer, _line = solved(Problem(graph, int(0.7 * baseline(graph).peak), machine()))
    offloaded = {step.target for step in answer.schedule if step.verb == Verb.OFFLOAD}
    assert any(graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT for x in offloaded)


def test_the_registry_knows_it() -> None:
    graph = with_updates(chain(4, seed=2), optimizer=SGD, when="after", device_rate=MiB, host_rate=MiB)
    found = registry.solve("stronghold", Problem(graph, baseline(graph).peak, machine()))
    assert found.lower_bound is not None
    assert found.figures.time >= found.lower_bound
    assert found.status in (Status.HEURISTIC, Status.OPTIMAL)


@pytest.mark.parametrize(
    ("graph", "on", "message"),
    [
        (chain(3, seed=1), Machine(), "stronghold needs a machine with links d2h and h2d"),
        (layered(9), machine(), "stronghold takes training graphs"),
        (chain(3, seed=1, parameters=False), machine(), "stronghold takes chains of layers with weights"),
        (chain(3, seed=1), machine(host=10), "of host memory; the machine has 10 B"),
    ],
    ids=["no links", "no training", "no weights", "small host"],
)
def test_refusals(graph: Graph, on: Machine, message: str) -> None:
    with pytest.raises(NotAcceptedError, match=message) as refusal:
        solved(Problem(graph, baseline(graph).peak // 2, on))
    assert "\n" not in str(refusal.value)


def test_weights_larger_than_the_device_are_refused_with_the_least_budget() -> None:
    graph = with_updates(chain(3, seed=1), optimizer=SGD, when="after", device_rate=MiB, host_rate=MiB)
    with pytest.raises(InfeasibleError, match="the smallest budget found by stronghold is"):
        solved(Problem(graph, 1000, machine()))


@pytest.mark.parametrize("wrong", [{"windows": "open"}, {"activations": "some"}, {"call_seconds": -1.0}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        stronghold.Settings(**wrong)


@pytest.mark.parametrize("seed", range(3))
def test_a_window_of_the_size_asked_for(seed: int) -> None:
    """All sizes, one by one, are what `windows=simulated` looks at; one too large names a budget for it."""
    problem = instance(seed)
    count = len(training_layers("stronghold", problem.graph).layers)

    def seconds(problem: Problem, **chosen: str | int) -> float:
        setting = stronghold.Settings(activations="keep", **chosen)  # pyright: ignore[reportArgumentType]
        answer = stronghold.solve(problem, Options(None, setting))
        return simulate(
            problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine
        ).figures.time

    roomy = replace(problem, budget=4 * problem.budget)
    times = [seconds(roomy, window=size) for size in range(1, count + 1)]
    assert min(times) == seconds(roomy, windows="simulated")
    with pytest.raises(InputError, match=f"window must be at most the {count} layers, not {count + 1}"):
        seconds(roomy, window=count + 1)
    with pytest.raises(InfeasibleError) as caught:
        seconds(replace(problem, budget=problem.graph.resident_bytes // 8), window=count)
    assert caught.value.least is not None
    assert seconds(replace(problem, budget=caught.value.least), window=count) >= min(times)
