"""Sharded training: FSDP2's policies, and solvers that are never slower than they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.network import network_bound
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.sharded import fsdp, sharded_search
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.offloading.sharded.policies import POLICIES
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Options, Problem, Technique
from memplan.solvers.recomputation.search import search
from memplan.solvers.registry import run as registry
from sharded_graphs import RATES, language_model, layers


def gathers(graph: Graph, schedule: Schedule) -> Counter[int]:
    """How often each weight is gathered."""
    weights = (graph.tensors.kind == Kind.PARAMETER).tolist()
    rows = schedule.rows()
    return Counter(x for verb, x, _where in rows if verb == Verb.PREFETCH and weights[x])


def test_policies_gather_weights_once_or_twice_and_checkpoint_layers() -> None:
    """With a network that takes no time they cost what they recompute."""
    graph = layers()
    forward = graph.operations.time[graph.operations.phase == Phase.FORWARD].sum()
    listed = policy_schedules(Problem(graph, 1))
    found = {str(policy): (schedule, figures) for policy, schedule, figures in listed}
    assert len(found) == 6
    for policy, (schedule, figures) in found.items():
        assert set(gathers(graph, schedule).values()) == {2 if policy.startswith("reshard") else 1}, policy
        most = baseline(graph).time + (forward if "checkpoints" in policy else 0.0)
        assert baseline(graph).time * (1 - 1e-9) <= figures.time <= most * (1 + 1e-9), policy
    for weights in ("reshard", "keep"):
        least = found[weights][1].least_budget
        assert found[f"{weights}, checkpoints"][1].least_budget < least
    assert found["reshard"][1].least_budget < found["keep"][1].least_budget
    scatters = Counter(x for verb, x, _to in found["keep"][0].rows() if verb == Verb.OFFLOAD)
    assert set(scatters.values()) == {1}
    assert len(scatters) == 8


@pytest.mark.scripts
@pytest.mark.parametrize("rate", RATES)
def test_auto_is_never_slower_than_fsdp2(rate: float) -> None:
    graph = layers(rate)
    policies = list(policy_schedules(Problem(graph, 2**50)))
    least = min(figures.least_budget for _policy, _schedule, figures in policies)
    most = max(figures.least_budget for _policy, _schedule, figures in policies)
    faster = 0
    for budget in np.linspace(least, most, 3).astype(int).tolist():
        problem = Problem(graph, budget)
        fixed = registry.solve("fsdp", problem, bound_seconds=0)
        found = registry.solve("auto", problem, 4.0, {"workers": "2"}, bound_seconds=0)
        assert found.figures.time <= fixed.figures.time * (1 + 1e-9)
        assert simulate(graph, found.schedule, budget=budget).figures == found.figures
        faster += found.figures.time < fixed.figures.time * (1 - 1e-6)
    assert faster


def not_slower_than_policies(graph: Graph, budgets: int, limit: float, workers: int) -> list[str]:
    """Compare `auto` with the fastest policy at budgets from the least that a policy needs to the most.

    Returns the policies that `auto` names.
    """
    known, named = list(policy_schedules(Problem(graph, 1))), list[str]()
    needed = [figures.least_budget for _policy, _schedule, figures in known]
    for budget in np.linspace(min(needed), max(needed), budgets).astype(int).tolist():
        problem = Problem(graph, budget)
        policies = [
            (simulate(graph, schedule, budget=budget).figures.time, str(policy))
            for policy, schedule, figures in known
            if figures.least_budget <= budget
        ]
        fixed = registry.solve("fsdp", problem, bound_seconds=0)
        assert (fixed.figures.time, fixed.policy) in policies
        assert fixed.figures.time == min(policies)[0]
        found = registry.solve("auto", problem, limit, {"workers": str(workers)}, bound_seconds=0)
        assert found.figures.time <= fixed.figures.time, (graph.name, budget, fixed.policy)
        assert found.policy == fixed.policy or found.figures.time < fixed.figures.time
        named.append(found.policy)
    return named


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rate", RATES)
def test_in_no_time_auto_is_not_slower_than_fsdp2(rate: float, workers: int) -> None:
    not_slower_than_policies(layers(rate), 3, 0.01, workers)


def test_a_policy_that_fits_is_enough_if_an_answer_is_requested() -> None:
    graph = layers(RATES[0])
    least = min(figures.least_budget for _policy, _schedule, figures in policy_schedules(Problem(graph, 1)))
    for budget in (least, 2**50):
        problem = Problem(graph, budget)
        answer = fsdp.solve(problem, Options(cancelled=lambda: True))
        assert simulate(graph, answer.schedule, budget=budget).figures.least_budget <= budget
    assert answer.policy == str(POLICIES[0])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_policies_that_fail_cost_auto_their_own_answer_alone(
    workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_graph: Graph) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(fsdp, "built_policies", fail)
    found = registry.solve("auto", Problem(layers(inf), 2**50), 1.0, {"workers": workers}, bound_seconds=0)
    assert "fsdp-tuned failed: RuntimeError: broken" in found.notes


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["gpt2", "llama-2-7b"])
def test_of_language_models_auto_has_fsdp2s_policies_in_a_moment(name: str) -> None:
    """12 and 32 layers; the larger is solved by worker processes. Where nothing is faster auto names the
    policy."""
    assert any(not_slower_than_policies(language_model(name), 2, 0.1, 2))


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("name", "layers", "limit"),
    [
        ("gpt2", None, 1.0),
        ("llama-2-7b", None, 1.0),
        ("llama-2-7b", None, 4.0),
        pytest.param(
            "llama-2-7b", 200, 4.0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1000)]
        ),  # 3 min
    ],
)
def test_on_graphs_of_thousands_of_operations_auto_is_not_slower_than_fsdp2(
    name: str, layers: int | None, limit: float
) -> None:
    not_slower_than_policies(language_model(name, layers), 4, limit, 2)


@pytest.mark.parametrize("rate", RATES)
def test_gathers_for_the_next_iteration_save_time_where_all_weights_fit(rate: float) -> None:
    """The policies' memory is enough: what is gathered ahead takes the room of what is stale. Each weight is
    still gathered once."""
    graph = layers(rate)
    assert graph.machine is not None
    kept = [each for each in policy_schedules(Problem(graph, 2**50)) if not each[0].reshard]
    budget = max(figures.least_budget for _policy, _schedule, figures in kept)
    problem = Problem(graph, budget)
    found = registry.solve("fsdp-prefetch", problem, bound_seconds=0)
    assert set(gathers(graph, found.schedule).values()) == {1}
    known, bound = min(figures.time for _p, _s, figures in kept), network_bound(graph, graph.machine, budget)
    if rate == RATES[0]:  # the network is the bottleneck: half of what the policies lose, and more
        assert found.figures.time - bound < 0.5 * (known - bound)
    assert found.figures.time <= 1.002 * known


def test_with_little_memory_fewer_weights_are_gathered_ahead() -> None:
    graph = layers(RATES[1])
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("fsdp-prefetch", Problem(graph, 1000), bound_seconds=0)
    least = refusal.value.least
    assert least is not None
    found = registry.solve("fsdp-prefetch", Problem(graph, least), bound_seconds=0)
    assert figures_least(graph, found.schedule) <= least
    roomy = registry.solve("fsdp-prefetch", Problem(graph, 2 * least), bound_seconds=0)
    assert roomy.figures.time <= found.figures.time * (1 + 1e-9)


def test_annealing_from_the_policies_is_never_slower() -> None:
    graph = layers(RATES[1])
    known = [(schedule, figures.time) for _p, schedule, figures in policy_schedules(Problem(graph, 2**50))]
    problem = Problem(graph, 2**50)
    found = joint.improved(problem, Options(None, joint.Settings(moves=20)), known)
    assert simulate(graph, found.schedule).figures.time <= min(seconds for _schedule, seconds in known)


@pytest.mark.scripts
@pytest.mark.parametrize("rate", [RATES[0], inf])
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_plans_reach_the_minimum_memory(rate: float, share: float) -> None:
    """Far below FSDP2's policies, and below what joint finds by itself."""
    graph = layers(rate)
    lowest = minimum_memory(graph)
    least = min(figures.least_budget for _policy, _schedule, figures in policy_schedules(Problem(graph, 1)))
    problem = Problem(graph, int(lowest + share * (least - lowest)))
    found = registry.solve("sharded-search", problem, 3.0, bound_seconds=0)
    assert found.figures.least_budget <= problem.budget < 0.8 * least
    assert simulate(graph, found.schedule, budget=problem.budget).figures == found.figures
    better = registry.solve("auto", problem, 4.0, {"workers": "2"}, bound_seconds=0)
    assert better.figures.time <= found.figures.time * (1 + 1e-9)


def test_joint_goes_on_from_a_start_where_it_finds_none_itself() -> None:
    graph = layers(RATES[1])
    lowest = minimum_memory(graph)
    least = min(figures.least_budget for _policy, _schedule, figures in policy_schedules(Problem(graph, 1)))
    problem = Problem(graph, int(lowest + 0.1 * (least - lowest)))
    with pytest.raises(InfeasibleError):
        registry.solve("joint", problem, 1.0, bound_seconds=0)
    start = registry.solve("sharded-search", problem, 1.0, bound_seconds=0)
    found = registry.solve("joint", problem, 1.0, bound_seconds=0, start=start.schedule)
    assert found.figures.time < start.figures.time
    assert found.figures.least_budget <= problem.budget


def test_on_a_network_that_takes_no_time_the_seconds_are_those_of_one_device() -> None:
    """The oracle: `search` on the graph whose weights are workspace, without ranks."""
    graph = layers()
    plain = sharded_search.without_weights(graph)
    assert not plain.tensors.spread
    assert baseline(plain).time == pytest.approx(baseline(graph).time)
    budget = int(0.5 * baseline(graph).peak)
    settings = sharded_search.Settings(moves=200)
    found = sharded_search.solve(Problem(graph, budget), Options(None, settings)).schedule
    seconds = simulate(graph, found).figures.time
    runs = [o for verb, o, _mode in found.rows() if verb == Verb.COMPUTE]
    assert len(runs) > len(graph.operations)
    assert seconds == pytest.approx(sum(graph.seconds(o) for o in runs))
    known = search.solve(Problem(plain, budget - graph.share_bytes), Options(None, settings)).schedule
    # Shares of gradients take some more, so that the search may have had to be repeated with less.
    assert simulate(plain, known).figures.time <= seconds * (1 + 1e-9)


def test_weights_are_gathered_for_each_run_that_reads_them_and_stay_for_the_next() -> None:
    graph = layers(RATES[1])
    problem = Problem(graph, 2**50)
    found = sharded_search.solve(problem, Options(None, sharded_search.Settings(moves=1))).schedule
    assert set(gathers(graph, found).values()) == {2}
    assert figures_least(graph, found) < figures_least(
        graph, joint.solve(problem, Options(None, joint.Settings(moves=20))).schedule
    )


def figures_least(graph: Graph, schedule: Schedule) -> int:
    return simulate(graph, schedule).figures.least_budget


def test_frozen_weights_may_stay_gathered_for_ever() -> None:
    """LoRA: what never changes is never stale, and never scattered."""
    graph = layers(RATES[0])
    operations = graph.operations
    updates = np.flatnonzero(operations.phase == Phase.UPDATE).tolist()
    frozen = {x for update in updates for x in graph.mutate_lists[update]}
    mutates = [[] if o in updates else row for o, row in enumerate(graph.mutate_lists)]
    graph = replace(graph, operations=replace(operations, mutates=type(operations.mutates).of(mutates)))
    found = registry.solve("joint", Problem(graph, 2**40), settings={"moves": "20"}, bound_seconds=0)
    assert frozen
    assert not gathers(graph, found.schedule)


def test_other_solvers_do_not_plan_sharded_training() -> None:
    with pytest.raises(NotAcceptedError, match="search does not plan sharded training: use one of"):
        registry.solve("search", Problem(layers(), 2**40))
    for solver in ("fsdp", "fsdp-prefetch", "sharded-search"):
        with pytest.raises(NotAcceptedError, match=f"{solver} takes graphs of sharded training"):
            registry.solve(solver, Problem(chain(3), 2**40, Machine(links=Links(1.0, 1.0))))


def test_what_the_machine_lacks_is_named() -> None:
    with pytest.raises(InputError, match="the machine has no network between ranks"):
        registry.solve("auto", Problem(layers(), 2**40, Machine(links=Links(1.0, 1.0))))
    with pytest.raises(InputError, match="addresses of sharded schedules are not supported"):
        registry.solve("joint", Problem(layers(), 2**40), addresses=True)


def test_a_budget_below_all_policies_is_refused_with_the_least() -> None:
    problem = Problem(layers(), 1000)
    least = min(figures.least_budget for _policy, _schedule, figures in policy_schedules(problem))
    with pytest.raises(InfeasibleError) as refusal:
        registry.solve("fsdp", problem, bound_seconds=0)
    assert refusal.value.least == least
    with pytest.raises(InfeasibleError, match="the budget is below the minimum memory of"):
        registry.solve("sharded-search", problem, bound_seconds=0)


def test_what_is_not_allowed_leaves_the_network() -> None:
    """`allow` is about the host and recomputation: weights are gathered all the same."""
    graph = layers(RATES[1])
    least = min(figures.least_budget for _policy, _schedule, figures in policy_schedules(Problem(graph, 1)))
    most = max(figures.least_budget for _policy, _schedule, figures in policy_schedules(Problem(graph, 1)))
    assert least < most
    choices: list[tuple[Technique, ...]] = [(), ("recompute",)]
    for allow, solver in product(choices, ("joint", "sharded-search")):
        problem = Problem(graph, most, allow=allow)
        found = registry.solve(solver, problem, settings={"moves": "2"}, bound_seconds=0)
        assert gathers(graph, found.schedule)
        runs = [target for verb, target, _where in found.schedule.rows() if verb == Verb.COMPUTE]
        assert allow or len(runs) == len(set(runs))
