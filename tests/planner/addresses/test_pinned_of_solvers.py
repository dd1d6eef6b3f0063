"""Solvers on machines that can pin little: within the limit, or an honest refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from direct_access import with_direct_access
from memplan.graphs.errors import MemplanError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Mode
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.offloading.cycles.cycle import cycle_of
from memplan.solvers.problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Problem,
    ValidatedSolution,
)
from memplan.solvers.registry import run as registry
from not_none import not_none
from small_offload import Case, small_case

SOLVERS = [entry.name for entry in registry.entries() if entry.needs_links]
SEEDS = (2, 10, 15, 18)


def outcome(solver: str, case: Case, pinned: int | None) -> ValidatedSolution | MemplanError:
    problem = Problem(case.graph, case.budget, replace(case.machine, pinned=pinned))
    try:
        return registry.solve(solver, problem, 0.3, bound_seconds=0.0)
    except (InfeasibleError, NotAcceptedError, NotFoundError) as refusal:
        return refusal


@pytest.mark.sampled(2)
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_pinned_stays_within_its_limit(solver: str) -> None:
    for seed in SEEDS:
        case = small_case(seed)
        roomy = outcome(solver, case, None)
        if not isinstance(roomy, ValidatedSolution) or not roomy.figures.pinned_peak:
            continue
        limit = max(0, roomy.figures.pinned_peak - 1)
        tight = outcome(solver, case, limit)
        if isinstance(tight, ValidatedSolution):
            machine = replace(case.machine, pinned=limit)
            figures = simulate(case.graph, tight.schedule, budget=case.budget, machine=machine).figures
            assert figures == tight.figures
            assert figures.pinned_peak <= limit
        else:
            assert "\n" not in str(tight)


def test_joint_makes_again_what_it_may_not_pin() -> None:
    graph = chain(10)
    rate = float(graph.tensors.bytes.max() / graph.operations.time.max())
    case = Case("chain", graph, Machine(links=Links(rate, rate)), int(0.6 * baseline(graph).peak))
    roomy = outcome("joint", case, None)
    assert isinstance(roomy, ValidatedSolution)
    limit = roomy.figures.pinned_peak // 2
    tight = outcome("joint", case, limit)
    assert isinstance(tight, ValidatedSolution)
    assert 0 < tight.figures.pinned_peak <= limit
    assert tight.figures.time > roomy.figures.time


def test_a_refusal_names_what_can_not_be_pinned() -> None:
    refusal = outcome("stronghold", small_case(10), 1)
    assert isinstance(refusal, NotAcceptedError)
    assert "the machine has 1 B of pinned host memory" in str(refusal)
    refusal = outcome("l2l", small_case(2), 1)
    assert "the host, where 1 bytes can be pinned" in str(refusal)


def test_weights_that_move_share_what_can_be_pinned() -> None:
    graph = small_case(0).graph
    for host, pinned, limit in ((None, None, None), (9, None, 9), (None, 5, 5), (9, 5, 5), (3, 5, 3)):
        machine = Machine(host_capacity=host, links=Links(1.0, 1.0), pinned=pinned)
        assert cycle_of("l2l", Problem(graph, 40, machine)).host_limit == limit


def test_where_no_copies_fit_what_can_be_pinned_nothing_is_and_copies_are_slower() -> None:
    """A plan by the pageable rates, told in one line; none without these, nor below the floor."""
    case, pageable = small_case(2), Link(10.0, pageable=4.0)
    machine = replace(case.machine, links=Links(pageable, pageable), pinned=1)
    problem = Problem(case.graph, case.budget, machine)
    with pytest.raises(NotAcceptedError, match="1 bytes can be pinned"):
        registry.solve("l2l", problem, bound_seconds=0.0)
    found = registry.solve_or_unpin("l2l", problem, bound_seconds=0.0)
    assert found.machine == machine.without_pinned()
    assert not_none(found.machine).links == Links(Link(4.0, pageable=4.0), Link(4.0, pageable=4.0))
    assert (
        found.figures
        == simulate(case.graph, found.schedule, budget=case.budget, machine=found.machine).figures
    )
    assert found.figures.pinned_peak == 0 < found.figures.host_peak
    line = "no schedule was found whose copies fit host.pinned (1 bytes): this one pins nothing"
    assert [note.startswith(line) for note in found.notes] == [True]
    roomy = replace(problem, machine=replace(machine, pinned=None))
    fast = registry.solve_or_unpin("l2l", roomy, bound_seconds=0.0)
    assert (fast.notes, fast.machine) == ((), roomy.machine)
    assert found.figures.time > fast.figures.time
    unknown = replace(problem, machine=replace(machine, links=Links(10.0, 10.0)))
    with pytest.raises(NotAcceptedError, match="1 bytes can be pinned"):
        registry.solve_or_unpin("l2l", unknown, bound_seconds=0.0)
    with pytest.raises(InfeasibleError):
        registry.solve_or_unpin("joint", replace(problem, budget=1), 0.3, bound_seconds=0.0)


def test_the_device_uses_no_host_memory_that_is_not_pinned() -> None:
    graph = small_case(0).graph
    write = next(o for o in range(len(graph.operations)) if graph.operations.writes[o].size)
    made = tuple(graph.operations.writes[write].tolist())
    modes = {write: (Mode("go", 1.0, 0, made, writes_host=made),)}
    writing = replace(graph, operations=replace(graph.operations, modes=modes))
    machine = Machine(links=Links(Link(1.0, pageable=1.0), Link(1.0, pageable=1.0))).without_pinned()
    for one in (with_direct_access(graph, 1e9), writing):
        found = registry.solve("auto", Problem(one, 10**6, machine))
        rows = found.schedule.rows()
        assert {where for verb, _, where in rows if verb == Verb.COMPUTE} <= {DEFAULT_MODE}
