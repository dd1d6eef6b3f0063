"""Techniques left out by `allow`: no solver uses them, and bounds are at least those of the free problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Link, Links, Machine, Memory
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule, Verb, compute
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.allowed import TECHNIQUES, parse_allow, restrict
from memplan.solvers.background import Background
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    Technique,
    ValidatedSolution,
)
from memplan.solvers.registry import run as registry
from small_graphs import small_graph
from small_offload import direct_case, small_case

SUBSETS: list[tuple[Technique, ...]] = [
    (),
    ("recompute",),
    ("offload",),
    ("recompute", "offload"),
    ("offload", "disk"),
    ("offload", "host-updates"),
    ("recompute", "offload", "disk"),
    ("recompute", "offload", "host-updates"),
    ("offload", "disk", "host-updates"),
]
"""All that can be stated but the whole."""

USES: dict[str, set[str]] = {
    "chen-sqrt": {"recompute"},
    "tw-remat": {"recompute"},
    "rotor": {"recompute"},
    "torch-partitioner": {"recompute"},
    "search": {"recompute"},
    "pofo": {"recompute"},
    "stronghold": {"offload", "host-updates"},
    "zero-infinity": {"offload", "host-updates"},
    "offmate": {"offload", "disk"},
    "l2l": {"offload"},
}
"""Techniques that some answer of a solver uses if all are allowed: else its test would show nothing."""

PROBLEMS = 1000 // len(USES)

ROUNDING = 1e-7
"""Relative difference of two bounds that the programs of integers leave."""


def techniques_of(graph: Graph, schedule: Schedule) -> set[str]:
    runs = schedule.verbs == Verb.COMPUTE
    moves = schedule.verbs >= Verb.OFFLOAD
    targets, wheres = schedule.targets[runs].tolist(), schedule.wheres[runs].tolist()
    variants = [graph.operations.modes[o][k - 1] for o, k in zip(targets, wheres, strict=True) if k]
    found = {
        "recompute": len(set(targets)) < len(targets),
        "offload": bool(moves.any()) or bool(schedule.initial.named) or any(m.uses_host for m in variants),
        "disk": bool((schedule.wheres[moves] >= Memory.DISK).any()) or bool(schedule.initial.disk),
        "host-updates": any(mode.on_host for mode in variants),
    }
    return {name for name, used in found.items() if used}


def problem_of(seed: int) -> Problem:
    """A third are of graphs that nothing leaves; others have links, a small host and a disk."""
    random = Random(seed)
    if seed % 3 == 0:
        graph, machine = small_graph(random), None
    else:
        case = (small_case if seed % 3 == 1 else direct_case)(seed)
        links = replace(case.machine.links, disk_read=Link(4.0), disk_write=Link(4.0))
        graph, machine = case.graph, Machine(host_capacity=random.randint(4, 20), links=links)
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, max(1, low + round((high - low) * random.choice((0.2, 0.5, 0.8, 1.0)))), machine)


def solved(solver: str, problem: Problem, bound_seconds: float = 0.0) -> ValidatedSolution | None:
    settings = {"moves": "20"} if solver == "search" else {}
    try:
        return registry.solve(solver, problem, 5.0, settings, bound_seconds=bound_seconds)
    except (InfeasibleError, NotAcceptedError):
        return None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", USES)
def test_no_solver_uses_what_is_left_out(solver: str) -> None:
    first, used, found = 10_000 * [*USES].index(solver), Counter[str](), 0
    for seed in range(first, first + PROBLEMS):
        problem, allow = problem_of(seed), Random(seed).choice(SUBSETS)
        free, own = solved(solver, problem), solved(solver, replace(problem, allow=allow))
        used.update(techniques_of(problem.graph, free.schedule) if free else ())
        if own is None:
            continue
        found += 1
        assert techniques_of(problem.graph, own.schedule) <= {*allow}, seed
        figures = simulate(
            problem.graph, own.schedule, budget=problem.budget, machine=problem.machine
        ).figures
        assert figures == own.figures, seed
        assert own.machine is problem.machine
        if free is not None and free.lower_bound is not None:
            assert own.lower_bound is not None
            assert own.lower_bound >= free.lower_bound * (1 - ROUNDING), seed
    assert found, "nothing was shown"
    assert USES[solver] <= {*used}


@pytest.mark.scripts
def test_computed_bounds_are_at_least_those_of_the_free_problem() -> None:
    higher = 0
    for seed in range(60):
        problem, allow = problem_of(seed), Random(seed).choice(SUBSETS)
        free, own = (solved("offmate", each, 10.0) for each in (problem, replace(problem, allow=allow)))
        if free is None or own is None:
            continue
        assert own.lower_bound is not None
        assert free.lower_bound is not None
        assert own.lower_bound >= free.lower_bound * (1 - ROUNDING), seed
        higher += own.lower_bound > free.lower_bound * (1 + ROUNDING)
    assert higher


def with_variants() -> Graph:
    """An operation that is fastest by its second variant; its first one is on the host."""
    draft = Draft("variants")
    x = draft.tensor("x", 1)
    y, z = draft.tensor("y", 1), draft.tensor("z", 1)
    draft.operation("a", time=1, writes=[x])
    variants = [Mode("host", 1, 0, (y,), on_host=True), Mode("fast", 2, 0, (y,))]
    draft.operation("b", time=9, reads=[x], writes=[y], modes=variants)
    draft.operation("c", time=1, reads=[y], writes=[z])
    return draft.graph([z])


def test_variants_keep_their_numbers() -> None:
    graph = with_variants()
    problem = Problem(graph, 10, allow=("recompute", "offload"))
    restriction = restrict(problem)
    assert [mode.name for mode in restriction.problem.graph.operations.modes[1]] == ["fast"]
    schedule = restriction.original(Schedule.of([compute(0), compute(1, 1), compute(2)]))
    assert schedule.wheres.tolist() == [0, 2, 0]
    assert len(problem.graph.operations.modes[1]) == 2

    def number(schedule: Schedule) -> int:
        (step,) = np.flatnonzero((schedule.verbs == Verb.COMPUTE) & (schedule.targets == 1))
        return int(schedule.wheres[step])

    found = registry.solve("search", problem)
    assert number(found.schedule) == 2
    assert found.figures.time == 4
    solving = Background("search", problem, 20.0)
    assert solving.ended.wait(120)
    assert solving.schedule is not None, solving.fault
    assert number(solving.schedule) == 2


def test_all_techniques_are_no_restriction() -> None:
    problem = Problem(with_variants(), 10, Machine(links=Links(1.0, 1.0)), TECHNIQUES)
    assert not restrict(problem).changes
    assert restrict(problem).problem.graph is problem.graph


def test_variants_that_cannot_run_are_left_out_and_a_start_keeps_its_meaning() -> None:
    """Nothing gets to the host: of the CPU's variant and the fast one the second is left, as number 2."""
    problem = Problem(with_variants(), 10)
    found = registry.solve("search", problem)
    assert not restrict(problem).changes
    assert [mode.name for mode in restrict(problem).problem.graph.operations.modes[1]] == ["fast"]
    start = Schedule.of([compute(0), compute(1, 2), compute(2)])
    assert found.schedule.wheres[found.schedule.verbs == Verb.COMPUTE].tolist() == [0, 2, 0]
    kept = registry.solve("store-all", problem, start=start)
    assert kept.schedule.wheres.tolist() == [0, 2, 0]
    assert kept.figures == simulate(problem.graph, start).figures
    with pytest.raises(InputError, match="the start is no schedule of this graph and machine: it runs"):
        registry.solve("search", problem, start=Schedule.of([compute(0), compute(1, 1), compute(2)]))


def test_the_variant_that_lacks_host_memory_is_the_one_that_is_named() -> None:
    draft = Draft("two on the CPU")
    x, y = draft.tensor("x", 1), draft.tensor("y", 1)
    draft.operation("a", time=1, writes=[x])
    variants = [Mode(name, 1, size, (y,), on_host=True) for name, size in (("large", 100), ("small", 0))]
    draft.operation("b", time=9, reads=[x], writes=[y], modes=variants)
    machine = Machine(host_capacity=50, links=Links(1.0, 1.0))
    restriction = restrict(Problem(draft.graph([y]), 10, machine))
    assert restriction.kept == {1: (2,)}
    error = restriction.not_accepted(NotAcceptedError("no"))
    assert str(error) == "no; on the CPU b needs 102 B of host memory; the machine has 50 B"


def test_a_problem_restricted_twice_is_the_same() -> None:
    once = restrict(replace(direct_problem(), allow=("offload",))).problem
    twice = restrict(once).problem
    assert twice.machine == once.machine
    assert twice.graph.operations.modes == once.graph.operations.modes


def direct_problem() -> Problem:
    case = direct_case(2)
    return Problem(case.graph, case.budget, case.machine)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("recompte", "'recompte' is not one of recompute, .*, did you mean 'recompute'?"),
        (("offload", "host_updates"), "'host_updates' is not one of .*, did you mean 'host-updates'?"),
        ("swap", "'swap' is not one of recompute, offload, disk, host-updates$"),
        ("disk", "'disk' without 'offload': its tensors pass through host memory, allow both"),
        ("recompute,host-updates", "'host-updates' without 'offload'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(words: str | tuple[str, ...], line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_allow(words)


def test_words_are_put_in_order() -> None:
    assert parse_allow(["offload", "recompute"]) == parse_allow(" recompute, offload") == SUBSETS[3]
    assert parse_allow(None) is parse_allow(TECHNIQUES) is None
    assert parse_allow("") == parse_allow(()) == ()


def refusal_of(find: Callable[[], object]) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        find()
    return caught.value


def test_a_refusal_names_the_technique_that_may_suffice() -> None:
    problem = direct_problem()
    least = minimum_memory(problem.graph)
    nothing = replace(problem, budget=least - 1, allow=())
    refusal = refusal_of(lambda: registry.solve("store-all", nothing, bound_seconds=0))
    text = str(refusal)
    assert text.startswith(f"with nothing allowed: no schedule within {least - 1} B")
    assert text.endswith("; there may be one with allow='offload'")
    assert "machine=" not in text
    larger = refusal.with_extra_bytes(100)
    assert str(larger).startswith(f"with nothing allowed: no schedule within {least + 99} B")
    assert str(larger).endswith("; there may be one with allow='offload'")
    hopeless = replace(problem, budget=1, allow=())
    text = str(refusal_of(lambda: registry.solve("store-all", hopeless, bound_seconds=0)))
    assert "there may be one" not in text
    alone = replace(problem, budget=1, machine=None)
    assert "allow" not in str(refusal_of(lambda: registry.solve("store-all", alone, bound_seconds=0)))


def test_solvers_that_need_links_say_that_none_are_allowed() -> None:
    problem = replace(direct_problem(), allow=("recompute",))
    with pytest.raises(NotAcceptedError, match=r"needs a machine with links.*; allow= leaves out offload$"):
        registry.solve("l2l", problem)


def test_notes_of_time_that_ran_out_say_it_too() -> None:
    refusal = NotFoundError("search", 10, 5)
    refusal.restrict(("offload",))
    assert str(refusal.with_extra_bytes(1)).startswith(
        "with offload allowed: search found no schedule within 11 B"
    )
