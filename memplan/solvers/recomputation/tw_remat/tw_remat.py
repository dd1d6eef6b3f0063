"""tw-remat: schedules by treewidth. A separator of the graph is kept, its sides are recomputed as needed.

The undirected graph of the operations is divided by balanced separators along a tree decomposition; a
recursion over the pieces gives a sequence. In the paper it takes O(width · log n) memory and n^O(log width)
runs, whatever the budget. Here a piece that makes at most `leaf_bytes` bytes keeps them, so there is a scale
from the paper's schedule (0) to the baseline. Several steps of it are tried, with both of networkx's
decompositions; then what the budget leaves is filled by keeping what would be recomputed
(planner/repeats.py). Of these sequences the one of least seconds within the device's bytes wins; nothing is
proven. 1,000 operations take seconds: a sequence of more than 20 runs per operation, on average, is given up.

    paper (3)                 here
    G, n                      the operations; neighbours if one reads what the other makes
    tree decomposition, k     networkx's approximations; bags of at most k + 1 operations
    balanced separator X      Piece.separator
    components of G − X       Piece.parts
    schedule                  a sequence of runs; planner/schedule/sequence.py deletes as early as possible

In the order to read:

    tree.py         the graph divided
    order.py        the recursion, and how many runs it makes
    tw_remat.py     leaf sizes, and which sequence is taken

Differences: sizes are bytes and times seconds, not one each; leaves keep what they make, and what can run for
good at the first visit does; operations that change tensors in place run last; what those that can't be
recomputed make is kept; first draws of random numbers keep the traced order. Operations run in their baseline
variant only.

Reference: R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. R. Wang, Efficient Rematerialization for Deep
Networks, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ....graphs.graph import Graph
from ....planner.bounds import minimum_memory, time_bound
from ....planner.repeats import without_most_repeats, without_repeats
from ....planner.schedule.sequence import Run, schedule_of
from ...candidates import baseline_candidate, device_limit, fitting_baseline, infeasible, simulate_candidate
from ...problem import NotFoundError, Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ...skipped import skipping
from .order import Dependencies, TooLongError, order
from .tree import taken_apart

NAME = "tw-remat"

PROMISING = 3
"""Number of sequences whose recomputations are checked one by one."""

ENTRIES = 100_000
"""The most entries of sequences that are simulated for each of those."""

LONGEST = 20
"""The most runs in a sequence, as a multiple of the operations."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of tw-remat."""

    steps: int = setting(8, "leaf sizes tried besides 0: a half of all bytes, a quarter, and so on", least=0)


def solve(problem: Problem, options: Options) -> SolverResult:
    """Return the fastest schedule of all sequences tried; at the time limit or Ctrl-C the best so far.

    At least one sequence is tried.

    Raises InfeasibleError if none is within the budget, NotFoundError if some were not tried for lack of
    time: the same time limit may then give another smallest budget.
    """
    graph, limit = problem.graph, device_limit(problem)
    settings = options.chosen(Settings)
    clock = options.clock()
    baseline = baseline_candidate(graph)
    if baseline.peak <= limit:
        return fitting_baseline(problem)
    found: list[_Result] = []

    def take(runs: list[Run]) -> None:
        with skipping(NAME):
            candidate = simulate_candidate(graph, schedule_of(graph, runs))
            # Compared by excess, then by seconds: all that fit have an excess of 0.
            found.append(_Result(max(0, candidate.peak - limit), candidate.time, runs))

    with clock.until_interrupted():
        for runs in sequences(graph, settings.steps):
            take(without_repeats(graph, runs, limit, clock.goes_on))
            if clock.expired:
                break
        for promising in sorted(found)[:PROMISING]:
            tries = ENTRIES // max(1, len(promising.runs))
            take(without_most_repeats(graph, promising.runs, limit, tries, clock.goes_on))
    if not found:
        clock.raise_if_interrupted()
        raise NotFoundError(NAME, limit, minimum_memory(graph, problem.machine))
    best = min(found)
    # Untried sequences may fit, so this proves no infeasibility.
    if best.excess and clock.expired:
        raise NotFoundError(NAME, limit, minimum_memory(graph, problem.machine), limit + best.excess)
    if best.excess:
        raise infeasible(NAME, problem, limit + best.excess)
    return SolverResult(schedule_of(graph, best.runs), Status.HEURISTIC, time_bound(graph), clock.interrupted)


class _Result(NamedTuple):
    """A sequence with its figures.

    excess: bytes above the limit.
    """

    excess: int
    time: float
    runs: list[Run]


def sequences(graph: Graph, steps: int) -> Iterator[list[Run]]:
    """Yield sequences from the paper's schedule to nearly the baseline, each once.

    Decompositions by least degree come first, then those by least fill-in.
    """
    sizes: list[int] = graph.tensors.bytes.tolist()
    made = [sum(sizes[x] for x in row) for row in graph.operations.writes.lists()]
    dependencies = Dependencies(graph)
    # A shift by more gives 0, which is the first leaf size already.
    finest = min(steps, sum(made).bit_length())
    leaves = [0, *(sum(made) >> step for step in range(finest, 0, -1))]
    seen: set[tuple[Run, ...]] = set()
    for fill_in in (False, True):
        root = taken_apart(dependencies.inner, fill_in=fill_in)
        for leaf_bytes in leaves:
            with suppress(TooLongError):
                runs = order(dependencies, root, made, leaf_bytes, LONGEST * len(made))
                if tuple(runs) not in seen:
                    seen.add(tuple(runs))
                    yield runs
