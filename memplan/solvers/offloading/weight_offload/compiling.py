"""The compiled code of `offload-greedy`, built in a worker process (workers/precompile.py)."""

from __future__ import annotations

from ....graphs.compiled import is_compiled
from ....graphs.generators import chain
from ....graphs.machine import Link, Links, Machine
from ....graphs.transformations.updates import ADAMW, with_updates
from ....planner.baseline import baseline
from ...problem import Options, Problem
from ...workers.precompile import Code
from ..cycles.replay import period
from .anneal import anneal
from .offload_greedy import Settings, solve


def _problem() -> Problem:
    """Return a problem that the greedy does not solve at once, so that it is searched."""
    link = Link(1e9)
    graph = with_updates(chain(8), optimizer=ADAMW, when="in-backward", device_rate=1e9, host_rate=1e9)
    return Problem(graph, baseline(graph).peak * 7 // 10, Machine(links=Links(d2h=link, h2d=link)))


def compile_search() -> None:
    """Compile the search and the replay of its cycles, by a short search."""
    solve(_problem(), Options(settings=Settings(moves=1)))


CODES = (Code(lambda: is_compiled(period) and is_compiled(anneal), f"{__name__}:compile_search", 6.0),)
