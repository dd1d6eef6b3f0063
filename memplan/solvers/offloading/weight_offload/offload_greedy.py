"""Weight offloading: which weights leave the device between their uses, and when each transfer runs.

Minimises the period of the training cycle within the budget: the paper's OFF(L, M_GPU, β), strongly NP-hard
by 3-partition. Assumed: every operation runs once, in traced order; activations stay, updates run on the
device; a weight, whole, may be offloaded between any two uses; the links have fixed rates and do not slow
each other. The paper's chain of L layers is any graph here.

Reference: O. Beaumont, L. Eyraud-Dubois, A. Shilova, X. Zhao, Weight offloading strategies for training
large DNN models, 2022, hal-03580767.

| paper                  | here                                              |
|------------------------|---------------------------------------------------|
| u, M_o, w_i, (i, d)    | the table in cycles/cycle.py                      |
| M_GPU                  | `Cycle.limit`, bytes                              |
| E_o                    | `excess` in selection.py, bytes                   |
| profit(k, d)           | `profit` in selection.py; the halved cost: `worth`|
| Pre_k, Off_k           | `fetches`, `_store` in scheduling.py              |
| T_ava(Pre), T_ava(Off) | `to_device`, `to_host` in scheduling.py, seconds  |
| WL                     | `uploads` in scheduling.py                        |

    ../cycles      first: what is read from a graph, and what an order is
    selection.py   Algorithm 1: offload intervals by profit for each byte moved
    scheduling.py  Algorithm 2: each transfer at its earliest time
    starts.py      both in several variants, and every weight moved lazily
    least.py       intervals that keep the links least busy, by an integer program
    packing.py     orders that fill the windows between computations exactly
    search.py      the best order so far, improved by anneal.py
    result.py      refusals; greedy_star.py, l2l.py: two baselines with the same files

Algorithms 1 and 2 are the published greedy, its slips corrected (named in their files): O(L²) and linear
for each variant; `moves=0` ends there, `choice=published` with the one variant that is printed. The integer
programs are exponential at worst, stopped after 3 s each. A move of the search costs one replay of the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ....planner.bounds import time_bound
from ...candidates import fitting_baseline, infeasible
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, seed_setting, setting
from ..cycles.cycle import Cycle, cycle_of
from ..cycles.steps import schedule_of_order
from .least import least_busy_intervals
from .packing import packed_ranks
from .result import host_too_small, refuse_if_too_small, seconds_of
from .scheduling import greedy_order
from .search import OrderSearch
from .selection import moved_bytes
from .starts import CLOSE_VARIANTS, PUBLISHED, VARIANTS, greedy_orders, lazy_order

NAME = "offload-greedy"

PROGRAM_SECONDS = 3.0
"""The most that one integer program may take."""

SPARE = (0.0, 1.0, 2.0)
"""Memory free in addition to what the runs need, in weights of the run's own size."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of offload-greedy."""

    choice: str = setting(
        "best",
        "best: of several variants, then searched; published: Algorithm 1 with the excess as printed, "
        "Algorithm 2, nothing else",
        words=("best", "published"),
    )
    moves: int = setting(
        300_000, "moves of the local search, fewer if the cycle is long; 0: the greedy alone", least=0
    )
    seed: int = seed_setting()


def solve(problem: Problem, options: Options) -> SolverResult:
    """Solve by greedy and local search.

    Raises NotAcceptedError (no links, no weights, a host too small), InfeasibleError.
    """
    settings = options.chosen(Settings)
    cycle = cycle_of(NAME, problem)
    if cycle.plain_peak <= cycle.limit:
        return fitting_baseline(problem)
    refuse_if_too_small(NAME, problem, cycle)
    if settings.choice == "published":
        return published(problem, cycle)
    search = OrderSearch(cycle, options)
    offer_starts(search, cycle)
    with search.clock.until_interrupted():
        # With moves=0 too, if no start holds: any schedule is better than a refusal.
        if (settings.moves and not search.done) or search.best is None:
            offer_packed(search, cycle)
            search.anneal(settings.moves, settings.seed)
    if search.best is None:
        search.clock.raise_if_interrupted()
        raise host_too_small(NAME, cycle)
    schedule = schedule_of_order(cycle, search.best.tolist())
    return SolverResult(schedule, Status.HEURISTIC, time_bound(problem.graph), search.clock.interrupted)


def published(problem: Problem, cycle: Cycle) -> SolverResult:
    """Solve by the printed greedy alone.

    Raises InfeasibleError if Algorithm 1 finds too little, or Algorithm 2 no place for a fetch.
    """
    orders = greedy_orders(cycle, [PUBLISHED])
    schedules = [schedule_of_order(cycle, order) for order in orders]
    # The printed algorithms check neither the host nor that a fetch fits: the simulator does.
    if not schedules or seconds_of(problem, schedules[0]) == inf:
        raise infeasible(NAME, problem, None)
    return SolverResult(schedules[0], Status.HEURISTIC, time_bound(problem.graph))


def offer_starts(search: OrderSearch, cycle: Cycle) -> None:
    """Offer the greedy's orders to the search; if none holds, the order in which every weight moves."""
    for variants in (VARIANTS, CLOSE_VARIANTS):
        for variant in variants:
            for order in greedy_orders(cycle, [variant]):
                search.offer(order)
            if search.done and search.best is not None:
                return
        if search.best is not None:
            return
    everything = range(len(cycle.intervals))
    if moved_bytes(cycle, everything) <= search.host_limit:
        search.offer(lazy_order(cycle, everything))


def offer_packed(search: OrderSearch, cycle: Cycle) -> None:
    """Offer orders of the intervals that keep links least busy: by the greedy, and with exactly filled
    windows."""
    for spare in SPARE:
        chosen = least_busy_intervals(cycle, spare, min(PROGRAM_SECONDS, search.left / 4))
        if chosen is None or moved_bytes(cycle, chosen) > search.host_limit:
            continue
        # None: the greedy's own order of transfers.
        for ranks in (None, *packed_ranks(cycle, chosen, min(PROGRAM_SECONDS, search.left / 4))):
            order = greedy_order(cycle, chosen, ranks)
            if order is not None:
                search.offer(order)
            if search.done and search.best is not None:
                return
