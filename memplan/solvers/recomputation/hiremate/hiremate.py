"""Hiremate: any partitioner, any solver at any level, options from the bottom up (thesis, 3.2.2).

Minimises the seconds of all runs within the device's bytes. The graph is cut into clusters of clusters; each
cluster gets options, ways to run its forward and backward parts within a budget, from a solver of its level;
at the top they are combined for the device's budget by H-ILP. Identical clusters are solved once, independent
ones in parallel, and solved ones kept on disk. Assumes that a good schedule can be put together from good
schedules of its clusters: within its clusters' options the answer is optimal; over all schedules nothing is
claimed.

| paper (thesis, chapter 3)     | here                                                              |
|-------------------------------|-------------------------------------------------------------------|
| M^t, M^l                      | top, lower                                                        |
| N_o                           | options                                                           |
| H-Partition                   | partitioner h-partition (graphs/partition)                        |
| hierarchical, direct solvers  | h-ilp; direct.py. `leaf` at the bottom, `level` above it          |
| all solvers to each H-Cluster | pooled; at the top, fastest and `whole`                           |
| H-Solver, steps 3 to 5        | options_of_all, then fastest                                      |

In the order to read:

    ../hierarchy                what a cluster is, how it can be run
    solve_levels.py             options for all clusters, level by level, from a solver of each level
    rk_checkmate.py             one of these; others are in ../h_ilp, and the one that keeps all
    direct.py                   any other solver that only recomputes
    subproblems.py              solved in parallel, and kept on disk
    hiremate.py                 the whole, with the top
    h_ilp.py                    the same, with H-ILP everywhere
    ../h_ilp                    H-ILP's program

The paper counts O(N / M^t) clusters for N operations (3.4.6). Each different one takes at most `peaks` ·
`saves` + 1 programs, whose size does not grow with N, and a share of the seconds; the number of different
ones grows with the graph's depth, not its length.

Reference: X. Zhao, thesis, Université de Bordeaux, 2024, chapter 3; Gusak et al., Hiremate, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from ....graphs.clusters.clusters import Cluster
from ....graphs.errors import InputError
from ....graphs.graph import Graph, Phase
from ....graphs.partition.partition import LOWER, TOP, partition
from ....graphs.structure.chain import Block, chain_of
from ....planner.bounds import minimum_memory, time_bound
from ....planner.repeats import without_most_repeats
from ....planner.schedule.sequence import runs_of, schedule_of
from ...candidates import (
    Candidate,
    baseline_candidate,
    device_limit,
    fastest_baseline,
    infeasible,
    require_backward,
    simulate_candidate,
)
from ...chains.problem import coarser
from ...clock import Clock
from ...problem import NotFoundError, Options, Problem, SearchStats, SolverResult, Status
from ...settings import SolverSettings, gap_setting, setting, workers_setting
from ...skipped import skipping
from ...workers.cluster import check_backend
from ..h_ilp.graph import HGraph
from ..h_ilp.top import TRIES, HierarchyResult, fastest, lightest, top_graph
from ..hierarchy.grid import Budgets
from ..hierarchy.tree import Branch, Hierarchy, Tree, hierarchy_of
from .direct import check, solvers_named, whole
from .solve_levels import child, level_solvers, options_of_all
from .subproblems import Job, Solved, cache_of, solve_all

NAME = "hiremate"

VERSION = "10"
"""Version of what cached answers depend on besides their subproblem: raised when a level solver changes."""

SECONDS = 300.0
"""Seconds to spend without a time limit."""

BELOW = 0.5
"""The share of the seconds for the clusters; the rest is the top's."""


@dataclass(frozen=True)
class ClusterSettings(SolverSettings):
    """Settings of h-ilp."""

    top: int = setting(TOP, "the most nodes of the top (M^t)", least=1)
    lower: int = setting(LOWER, "the most nodes of a cluster (M^l)", least=1)
    peaks: int = setting(3, "peak budgets per cluster", least=1)
    saves: int = setting(6, "budgets per cluster for what it saves", least=1)
    options: int = setting(240, "the most options that a program's clusters keep in all (N_o)", least=1)
    gap: float = gap_setting(0.01, "relative gap at which a program's search may stop")
    workers: int = workers_setting(1, "worker processes; 0: one per core")
    backend: str = setting("loky", "loky, dask or ray", check=check_backend)
    cache: str = setting("", "a folder for solved clusters, or off; empty: the user's cache folder")


@dataclass(frozen=True)
class _Parts(SolverSettings):
    """The settings that say what hiremate's framework is made of."""

    partitioner: str = setting("h-partition", "h-partition or sequential")
    leaf: str = setting(
        "h-ilp",
        "solvers of clusters of operations, with commas between them: h-ilp, plain, and all that only "
        "recompute",
        check=lambda text: _check_levels("leaf", text),
    )
    level: str = setting(
        "h-ilp",
        "solvers of clusters of clusters, as of leaf",
        check=lambda text: _check_levels("level", text),
    )
    whole: str = setting(
        "",
        "solvers that get the whole graph besides h-ilp; empty: none",
        check=lambda text: [check(name) for name in solvers_named(text)],
    )


def _check_levels(name: str, text: str) -> None:
    if not level_solvers(text):
        raise InputError(f"{name} must name a solver, not {text!r}")


@dataclass(frozen=True)
class Settings(ClusterSettings, _Parts):
    """Settings of hiremate: what its framework is made of, then those of h-ilp."""


def solve(problem: Problem, options: Options) -> SolverResult:
    return solve_as(NAME, problem, options, options.chosen(Settings))


def solve_as(name: str, problem: Problem, options: Options, settings: Settings) -> SolverResult:
    """Solve the problem. Ctrl-C while the top is solved ends it: the answer is the best so far."""
    graph, limit = problem.graph, device_limit(problem)
    require_backward(name, graph)
    baseline = baseline_candidate(graph)
    if (answer := fastest_baseline(problem, baseline)) is not None:
        return answer
    seconds = SECONDS if options.time_limit is None else options.time_limit
    clock = Clock(seconds, options.cancelled)
    others = solvers_named(settings.whole)
    others_answer, interrupted = whole(problem, others, seconds / (1 + len(others)), options.report)
    if interrupted:
        # Interrupted: what fits comes before what does not, then the fastest.
        best = min((baseline, *others_answer), key=lambda one: (one.peak > limit, one.time))
        return SolverResult(best.schedule, Status.FEASIBLE, time_bound(graph), interrupted=True)
    hierarchy = hierarchy_of(graph, tree_of(settings.partitioner, graph, settings.top, settings.lower))
    top, complete = _options(hierarchy, settings, options, clock)
    found = fastest(
        graph,
        hierarchy,
        top,
        limit,
        gap=settings.gap,
        clock=clock,
        report=options.report,
    )
    fitting = [
        one for one in (baseline, found.candidate, *others_answer) if one is not None and one.peak <= limit
    ]
    best = min(fitting, key=lambda one: one.time, default=None)
    if best is None:
        clock.raise_if_interrupted()
        best = _lightest(
            name, problem, hierarchy=hierarchy, top=top, found=found, clock=clock, complete=complete
        )
    if found.bound < inf:
        options.report(f"{best.time:.6g} s; from these options none is faster than {found.bound:.6g} s")
    # Optimal from these options only; FEASIBLE says that more time might help.
    status = Status.HEURISTIC if found.proven else Status.FEASIBLE
    effort = SearchStats.of(found.nodes, best.time, found.bound)
    return SolverResult(best.schedule, status, time_bound(graph), clock.interrupted, effort=effort)


def _options(hierarchy: Hierarchy, settings: Settings, options: Options, clock: Clock) -> tuple[HGraph, bool]:
    """Return the top's H-graph with all clusters' options, and whether no search was cut short."""
    # joblib's −1: one per core.
    workers = settings.workers or -1
    cache = cache_of(settings.cache, f"{NAME} {VERSION}")

    def run(function: Callable[[Any, float], Solved], jobs: Sequence[Job]) -> list[Any]:
        answers = solve_all(function, jobs, workers=workers, backend=settings.backend, cache=cache)
        options.report(f"{len(jobs)} clusters solved")
        return answers

    budgets = Budgets(settings.peaks, settings.saves, settings.options, settings.gap)
    seconds = BELOW * max(0.0, clock.left)
    leaf, level = level_solvers(settings.leaf), level_solvers(settings.level)
    found, complete = options_of_all(
        hierarchy, leaf, level=level, budgets=budgets, seconds=seconds, solve_all=run
    )
    children = [child(inner, [] if spec is None else found[spec]) for inner, spec in hierarchy.top]
    return top_graph(hierarchy, children, settings.options), complete


def _lightest(
    name: str,
    problem: Problem,
    hierarchy: Hierarchy,
    top: HGraph,
    found: HierarchyResult,
    clock: Clock,
    complete: bool,
) -> Candidate:
    """Return the schedule of least accounted memory, which may fit, since the accounts are above its peak.

    complete: the options are those that any longer search would find.

    Raises InfeasibleError if the schedule does not fit, NotFoundError if more time may lead to another.
    """
    graph, limit = problem.graph, device_limit(problem)
    # Not proven: more time might find one that fits, so a smallest budget would be a guess.
    least = lightest(graph, hierarchy, top, clock) if found.proven else None
    if least is None:
        raise NotFoundError(name, limit, minimum_memory(graph, problem.machine))
    if least.peak > limit and not complete:
        raise NotFoundError(name, limit, minimum_memory(graph, problem.machine), least.peak)
    if least.peak > limit:
        raise infeasible(name, problem, least.peak)
    # What the accounts overestimate is room: recomputations are taken out as long as the rest fits.
    fewer = without_most_repeats(graph, runs_of(least.schedule), limit, TRIES, clock.goes_on)
    with skipping(name):
        return simulate_candidate(graph, schedule_of(graph, fewer))
    return least


Partitioner = Callable[[Graph, int, int], Tree]
"""Function (graph, most nodes of the top, most nodes of a cluster) -> tree."""


def tree_of(name: str, graph: Graph, top: int, lower: int) -> Tree:
    if name not in PARTITIONERS:
        raise InputError(f"unknown partitioner {name!r}: {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name](graph, top, lower)


def sequential(graph: Graph, top: int, lower: int) -> Tree:
    """Return the chain of blocks, as Rockmate's.

    Neighbours are joined if it has more than `top` blocks. Blocks with more than `lower` operations have the
    blocks that were joined as children.
    """
    fine = chain_of(graph)
    loss = [o for o in fine.blocks[-1].forward if graph.operations.phase[o] == Phase.LOSS]
    later = fine.blocks[-1].forward.index(loss[0]) if loss else len(fine.blocks[-1].forward)
    # The loss stands between the forward and the backward part of the whole: it is in no block.
    middle = fine.blocks[-1].forward[later:]
    blocks = [*fine.blocks[:-1], Block(fine.blocks[-1].forward[:later], fine.blocks[-1].backward, None)]
    place = {o: index for index, block in enumerate(blocks) for o in (*block.forward, *block.backward)}
    coarse = coarser(graph, fine, top)
    branches: list[Branch] = []
    for block in coarse.blocks:
        inside = sorted({place[o] for o in (*block.forward, *block.backward) if o in place})
        members = [Branch(blocks[i].forward, blocks[i].backward) for i in inside]
        forward = tuple(o for member in members for o in member.forward)
        grouped = tuple(members) if len(members) > 1 and len(forward) > lower else ()
        # The last block may have been the loss alone.
        if forward or block.backward:
            branches.append(Branch(forward, block.backward, grouped))
    return Tree(tuple(branches), middle, fine.after)


def h_partition(graph: Graph, top: int, lower: int) -> Tree:
    """Return the clusters of H-Partition, each with its operations as its children run."""
    found = partition(graph, top=top, lower=lower)
    branches = tuple(_branch(child) for child in found.root.children)
    return Tree(branches, tuple(found.middle.tolist()), tuple(found.after.tolist()))


def _branch(cluster: Cluster) -> Branch:
    if not cluster.children:
        return Branch(tuple(cluster.forward.tolist()), tuple(cluster.backward.tolist()))
    children = tuple(_branch(child) for child in cluster.children)
    forward = tuple(o for child in children for o in child.forward)
    # Children that are single operations are taken apart anyway.
    nested = any(child.is_cluster for child in children)
    return Branch(forward, tuple(cluster.backward.tolist()), children if nested else ())


PARTITIONERS: dict[str, Partitioner] = {"h-partition": h_partition, "sequential": sequential}
