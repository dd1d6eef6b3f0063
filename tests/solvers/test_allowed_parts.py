"""Techniques that `allow` lets some tensors have: no solver uses them for others, more is never slower."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from exact import optimal_time
from exact_offload import optimum
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.allowed import parse_allow, restrict
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    Technique,
    ValidatedSolution,
)
from memplan.solvers.registry import run as registry
from small_offload import small_training

Techniques = tuple[Technique, ...]

PARTS: list[Techniques] = [
    ("recompute:activations",),
    ("recompute:gradients",),
    ("offload:activations",),
    ("offload:weights",),
    ("offload:states",),
    ("offload:activations", "offload:gradients"),
    ("offload:weights", "offload:states"),
    ("offload:weights", "offload:gradients", "offload:states"),
    ("offload:weights", "offload:gradients", "offload:states", "host-updates"),
    ("recompute", "offload:states"),
    ("recompute:activations", "offload:activations", "disk"),
    ("recompute:activations", "offload"),
]

SOLVERS = [entry.name for entry in registry.entries() if not entry.sharded or entry.name in ("auto", "joint")]

KINDS = {
    Kind.ACTIVATION: "activations",
    Kind.PARAMETER: "weights",
    Kind.BUFFER: "weights",
    Kind.GRADIENT: "gradients",
    Kind.PARAMETER_GRADIENT: "gradients",
    Kind.OPTIMIZER_STATE: "states",
}

ABOVE = 1 + 1e-7


def used_parts(graph: Graph, schedule: Schedule) -> set[str]:
    """The parts of recompute and offload that a schedule uses, read from its steps alone."""
    found, seen = set[str](), set[int]()
    below = {x for x, kind in enumerate(graph.tensors.kind) if schedule.initial.memories(x)[-1]}
    for verb, target, where in schedule.rows():
        if verb >= Verb.OFFLOAD:
            below.add(target)
        elif verb == Verb.COMPUTE:
            if target in seen:
                backward = graph.operations.phase[target] >= Phase.BACKWARD
                found.add(f"recompute:{'gradients' if backward else 'activations'}")
            seen.add(target)
            if where:
                mode = graph.operations.modes[target][where - 1]
                below.update(graph.input_lists[target] if mode.on_host else mode.reads_host)
                below.update(mode.made_on_host)
    return found | {f"offload:{KINDS[Kind(int(graph.tensors.kind[x]))]}" for x in below}


def parts_of(words: Techniques) -> set[str]:
    whole = {
        "recompute": {"recompute:activations", "recompute:gradients"},
        "offload": {f"offload:{kind}" for kind in KINDS.values()},
    }
    return {part for word in words for part in whole.get(word, {word})}


def problem_of(seed: int) -> Problem:
    """Every second one is a chain without weights, for solvers that take chains alone."""
    random = Random(seed)
    if seed % 2:
        graph = chain(random.randint(3, 5), seed=seed)
        links = Links(2**18, 2**18, 2**18, 2**18)
    else:
        graph = small_training(
            random, random.randint(3, 5), states=True, host=seed % 4 == 0, saved=True, moving=12
        )
        links = Links(2.0, 2.0, Link(4.0), Link(4.0))
    machine = Machine(links=links)
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, low + round((high - low) * random.choice((0.4, 0.7, 0.9))), machine)


def solved(solver: str, problem: Problem, seconds: float = 5.0) -> ValidatedSolution | None:
    settings = {"moves": "20"} if solver in ("search", "auto") else {}
    try:
        return registry.solve(solver, problem, seconds, settings, bound_seconds=0)
    except (InfeasibleError, NotAcceptedError):
        return None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", SOLVERS)
def test_no_solver_uses_what_is_left_out(solver: str) -> None:
    found = Counter[str]()
    for seed in range(6 if solver in ("auto", "joint", "hiremate", "h-ilp", "moccasin") else 16):
        allow = PARTS[seed % len(PARTS)]
        problem = replace(problem_of(seed // 2 + 100 * SOLVERS.index(solver)), allow=allow)
        own = solved(solver, problem, 1.0 if solver in ("auto", "joint") else 5.0)
        if own is None:
            found["refused"] += 1
            continue
        found["solved"] += 1
        assert used_parts(problem.graph, own.schedule) <= parts_of(allow), (seed, allow)
        assert not any("internal error" in note for note in own.notes), own.notes
        figures = simulate(problem.graph, own.schedule, budget=problem.budget, machine=problem.machine)
        assert figures.figures == own.figures
    assert found


LADDERS: list[list[Techniques]] = [
    [(), ("recompute:gradients",), ("recompute",)],
    [(), ("recompute:activations",), ("recompute",)],
]

OFFLOADS: list[list[Techniques]] = [
    [(), ("offload:states",), ("offload:weights", "offload:states"), ("offload",)],
    [(), ("offload:activations",), ("offload:activations", "offload:gradients"), ("offload",)],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("solver", ["checkmate", "rk-checkmate", "rotor"])
def test_more_techniques_are_never_slower_with_an_exact_solver(solver: str, seed: int) -> None:
    graph = chain(4, seed=seed, parameters=False)
    low, high = minimum_memory(graph), baseline(graph).peak
    for ladder in LADDERS:
        times = [inf]
        for allow in ladder:
            found = solved(solver, Problem(graph, low + (high - low) * (1 + seed % 4) // 4, allow=allow))
            times.append(found.figures.time if found else inf)
        assert times == sorted(times, reverse=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(24))
def test_more_techniques_are_never_slower_with_exhaustive_search(seed: int) -> None:
    """Nor is a bound, or the minimum memory, above what the techniques allow."""
    random = Random(seed)
    graph = small_training(random, 2, states=True, host=seed % 2 == 0, moving=5)
    machine = Machine(links=Links(random.choice((1, 2)), 2))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    budget = low + (high - low) * (seed % 3 + 1) // 4
    for ladder in OFFLOADS:
        before, floor = inf, 2**62
        for allow in ladder:
            restricted = restrict(Problem(graph, budget, machine, allow)).problem
            own, rest = restricted.machine, restricted.graph
            assert own is not None
            least = minimum_memory(rest, own)
            assert least <= floor
            floor = least
            if not own.links.reach_host:
                best = optimal_time(rest, budget) or inf
                assert best >= 0
                continue
            best = optimum(rest, own, budget, states=5_000)
            if not best.proven:
                pytest.skip("the search was given up")
            if best.schedule is not None:
                assert used_parts(rest, best.schedule) <= parts_of(allow)
                assert least <= budget
            assert offload_bound(rest, own, budget).seconds <= best.period * ABOVE
            assert best.period <= before * ABOVE
            before = best.period


def test_offmate_can_be_asked_without_each_of_its_techniques() -> None:
    """As in the thesis's ablations: each technique that is left out costs time or the schedule."""
    graph = small_training(Random(3), 5, states=True, host=True, saved=True, moving=15)
    machine = Machine(links=Links(3.0, 3.0))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    problem = Problem(graph, low + (high - low) * 2 // 3, machine)
    whole = solved("offmate", problem)
    assert whole is not None
    found = 0
    for left_out in ("activations", "weights", "states"):
        kept = {"activations", "weights", "gradients", "states"} - {left_out}
        allow = parse_allow(["recompute", *(f"offload:{kind}" for kind in sorted(kept))])
        own = solved("offmate", replace(problem, allow=allow))
        found += own is not None
        assert own is None or f"offload:{left_out}" not in used_parts(graph, own.schedule)
    assert found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("offload:weight", "'offload:weight' is not one of offload:activations, .*mean 'offload:weights'"),
        ("recompute:states", "'recompute:states' is not one of recompute:activations, recompute:gradients"),
        ("disk:states", "'disk:states' is not one of recompute, offload, disk, host-updates"),
        ("offload:states,host-updates", "'host-updates' without 'offload:weights, offload:gradients': its"),
    ],
)
def test_what_cannot_be_honoured_is_refused(words: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_allow(words)


def test_parts_stand_for_the_whole() -> None:
    assert parse_allow("recompute:gradients,recompute:activations") == ("recompute",)
    assert parse_allow("offload,offload:states") == ("offload",)
    every = "recompute,offload:states,offload:weights,offload:gradients,offload:activations,disk,host-updates"
    assert parse_allow(every) is None
    assert parse_allow("disk,offload:states") == ("offload:states", "disk")


def test_a_refusal_names_the_tensors_that_may_suffice() -> None:
    graph = small_training(Random(2), 3, states=True, moving=9)
    machine = Machine(links=Links(1.0, 1.0))
    # All weights and states leave: what stays is too much with activations alone.
    problem = Problem(graph, minimum_memory(graph, machine), machine, ("offload:activations",))
    with pytest.raises(InfeasibleError) as caught:
        registry.solve("joint", problem, 2.0, bound_seconds=0)
    text = str(caught.value)
    assert text.startswith("with offload:activations allowed: ")
    assert "there may be one with allow='recompute,offload'" not in text
    assert "offload:weights" in text or "allow='recompute,offload,disk,host-updates'" in text
    assert not isinstance(caught.value, NotFoundError) or caught.value.min_memory > problem.budget


def test_a_solver_that_moves_what_stays_says_so() -> None:
    graph = small_training(Random(2), 3, states=True, moving=9)
    problem = Problem(graph, baseline(graph).peak - 1, Machine(links=Links(1.0, 1.0)), ("offload:states",))
    with pytest.raises(NotAcceptedError) as caught:
        registry.solve("stronghold", problem)
    assert "moves weights between device and host, which all stay" in str(caught.value)
    assert "allow= leaves out recompute, offload:activations, offload:weights" in str(caught.value)


def test_the_simulator_refuses_what_stays() -> None:
    graph = small_training(Random(2), 3, states=True, moving=9)
    machine = Machine(links=Links(1.0, 1.0))
    problem = Problem(graph, minimum_memory(graph, machine) + 9, machine)
    found = registry.solve("l2l", problem, bound_seconds=0)
    moved = np.flatnonzero(found.schedule.verbs >= Verb.OFFLOAD)
    weights = frozenset(np.flatnonzero(graph.tensors.kind == Kind.PARAMETER).tolist())
    assert len(moved)
    staying = replace(graph, tensors=replace(graph.tensors, stays=weights))
    with pytest.raises(InvalidScheduleError, match="may not leave the device"):
        simulate(staying, found.schedule, machine=machine)
