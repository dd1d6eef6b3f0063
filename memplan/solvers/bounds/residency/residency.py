"""Lower bounds on the time of any schedule within a budget, by the residency program (program.py).

Minimised are the seconds of all runs that are not first runs, within the budget at chosen moments.
`residency_bound` holds for schedules whose first runs keep the traced order; `free_order_bound` for all, with
any order, any recomputations, any deletes. Both hold only without transfers.

1. In fractions: moments are added at which the current answer does not fit yet (moments.py), a few a
   round, until the bound stops rising. Some ten moments give nearly all of it. Memory is priced, and each
   price gives a bound by a minimum cut (cuts.py, prices.py), so no solver's tolerance is in them.
2. In whole numbers, with windows between the moments (windows.py), and more moments at which the answer does
   not fit as a schedule. This proves optima of graphs of a hundred operations in a second.

    program.py    begin here: symbols, rows, why every schedule satisfies them; windows.py, rows (6) to (10)
    facts.py      what the program needs to know of a graph
    order.py      what has surely run at a moment, and what surely has not
    moments.py    which moments are needed
    cuts.py       the program with prices on its memory; max_flow.py, how that is solved
    prices.py     the best prices
    search.py     both phases above
    sequence.py   from an answer to a sequence of runs; schedule.py, the fastest schedule that follows

Every program on the way gives a bound, so the time limit only makes it lower. A moment costs O(edges) rows.

No reference: it is Checkmate's program (Jain et al. 2020, arXiv:1910.02653) seen at single moments, with the
need for a recomputation carried from tensor to tensor. The bound for any order was developed for memplan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from threading import Event

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.outward import sum_below
from ....planner.bounds import time_bound
from ...candidates import Candidate
from ...clock import Clock
from ...problem import HIGHS, Bound, OrderName
from .facts import facts_of
from .search import ResidencyBoundSearch

NAME = "residency"

_LOOK_SECONDS = 0.1


@dataclass(frozen=True, eq=False)
class Residency:
    """A bound with the answer of its program, if it has one.

    reruns: per operation, how often it is recomputed; fractions, unless whole.
    moments: operations whose first runs were looked at.
    schedule: the fastest that was found on the way within the budget, if any.
    finished: more time would not raise the bound.
    interrupted: by Ctrl-C.
    prices: of the memory at moments, by operation, of the best bound in fractions (prices.py).
    """

    bound: Bound
    reruns: Floats
    moments: list[int]
    whole: bool
    schedule: Candidate | None
    finished: bool
    interrupted: bool
    prices: dict[int, float]


class TracedOrder:
    """Moments and bound of a search in traced order, in fractions, handed over to another thread."""

    def __init__(self) -> None:
        self._over = Event()
        self._left: tuple[list[int], float, float] | None = None

    def leave(self, search: ResidencyBoundSearch) -> None:
        """Leave what the search has found, unless it was cut short."""
        if search.clock.goes_on():
            self._left = search.chosen, search.best.extra, search.certain
        self._over.set()

    def end(self) -> None:
        """Let nobody wait any more: there may have been no search."""
        self._over.set()

    def wait(self, cancelled: Callable[[], bool]) -> tuple[list[int], float, float] | None:
        """Wait for moments, `extra` and `certain` of the search; None if there are none."""
        while not (self._over.wait(_LOOK_SECONDS) or cancelled()):
            pass
        return self._left


def residency_bound(
    graph: Graph, budget: int, time_limit: float | None = None, goal: float = inf
) -> Residency:
    """Compute the bound for first runs in traced order, within `budget` bytes; ∞: there is no such schedule.

    goal: seconds of a known schedule, beyond which the bound need not rise.
    """
    return residency_of(ResidencyBoundSearch(graph, budget, "file", _seconds(time_limit), goal=goal), "file")


def free_order_bound(
    graph: Graph,
    budget: int,
    time_limit: float | None = None,
    goal: float = inf,
    moments: Sequence[int] = (),
    whole: bool = True,
) -> Residency:
    """Compute the bound for every order that the dependencies allow.

    moments: operations to begin with.
    whole: solve the program in whole numbers too.
    """
    search = ResidencyBoundSearch(graph, budget, "any", _seconds(time_limit), goal=goal, moments=moments)
    return residency_of(search, "any", whole)


def rising_bound(
    graph: Graph,
    budget: int,
    time_limit: float | None,
    tell: Callable[[Bound], None],
    cancelled: Callable[[], bool],
    traced: TracedOrder | None = None,
) -> Residency:
    """Compute the bound for any order, as `free_order_bound`, from the moments found in traced order.

    The program for the traced order is solved first, in fractions, unless another thread solves it.

    tell: is called with each higher bound, of either order.
    cancelled: whether the time is over.
    traced: of the other thread.
    """
    clock = Clock(time_limit, cancelled)

    def search(order: OrderName, moments: Sequence[int] = ()) -> ResidencyBoundSearch:
        def rise(extra: float) -> None:
            # `found` exists by then: the search tells nothing before it runs.
            tell(_bound(graph, extra, order, found.certain))

        found = ResidencyBoundSearch(
            graph, budget, order, clock.left, moments=moments, tell=rise, cancelled=cancelled
        )
        return found

    left = traced and traced.wait(cancelled)
    if left:
        moments, extra, certain = left
        tell(_bound(graph, extra, "file", certain))
    else:
        fixed = search("file")
        fixed.run(whole=False)
        moments = fixed.chosen
        del fixed  # of large graphs it is large
    return residency_of(search("any", moments), "any")


def _bound(graph: Graph, extra: float, order: OrderName, certain: float = inf) -> Bound:
    """Return the bound of a residency program on the whole iteration.

    extra: seconds above those of all operations; certain: those of them that minimum cuts prove.
    """
    # Rounded down, as it is a bound.
    least = sum_below([*facts_of(graph).seconds, extra])
    return Bound(max(time_bound(graph), least), NAME, order, by=HIGHS if extra > certain else "")


def residency_of(search: ResidencyBoundSearch, order: OrderName, whole: bool = True) -> Residency:
    """Run the search."""
    finished = search.run(whole)
    best = search.best
    return Residency(
        bound=_bound(search.graph, best.extra, order, search.certain),
        reruns=best.later.runs[0],
        moments=best.moments,
        whole=best.whole,
        schedule=search.found,
        finished=finished,
        interrupted=search.clock.interrupted,
        prices=search.proof,
    )


def _seconds(time_limit: float | None) -> float:
    return inf if time_limit is None else time_limit
