"""The question of sizing: is there a schedule of this graph within these bytes? A solver answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.units import duration, format_bytes
from ..planner.schedule.schedule import Schedule
from ..solvers.auto.members import described
from ..solvers.problem import InfeasibleError, NotFoundError, Problem
from ..solvers.registry import run as registry
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .trial import UnansweredError

QUICK, QUICK_OF_SEVERAL, QUICK_OF_RANKS = 0.15, 0.22, 0.2
"""Shares of --time-limit for a question that only asks whether there is a schedule. The second is for several
GPUs: the later ones have the schedules that were found for the first. The third is for ranks, whose curve
has such answers.
"""
_ANY = "99%"
"""A gap that every schedule is within: the first one ends the search."""
_NEAREST = "joint"


@dataclass(frozen=True)
class Room:
    """Bytes of a GPU.

    limit: bytes to use.
    constant: of these, what cuBLAS keeps.
    reserve: left free in addition.
    """

    limit: int
    constant: int
    reserve: int

    @property
    def planned(self) -> int:
        return max(1, self.limit - self.constant)

    @property
    def unplanned(self) -> int:
        """Bytes for the loop that people have: cuBLAS has a workspace for the thread of backward too."""
        return max(1, self.planned - self.constant)


@dataclass(frozen=True)
class Question:
    """A run of the solver. Called with a graph and a budget, it returns a schedule, or None if it finds none.

    time_limit: seconds, None: by the graph's size.
    share: share of these seconds to use. quick_share: of these, for `quick`.
    start: a schedule within the budget to begin with; the answer is never slower.
    """

    solver: str
    time_limit: float | None
    settings: Mapping[str, str]
    machine: Machine
    report: Callable[[str], None]
    share: float = 1.0
    quick_share: float = QUICK
    start: Schedule | None = None

    @cached_property
    def any_size(self) -> Machine:
        """The machine with a device as large as the budget says."""
        return replace(self.machine, device_capacity=None)

    @cached_property
    def quick(self) -> Question:
        """The question whether there is a schedule at all, fast or not.

        If tensors can be transferred, it runs only that solver of the default portfolio that comes nearest to
        the minimum memory: the others take seconds to start.
        """
        links = self.machine.links
        transfers = links.h2d is not None or links.peers is not None
        if self.solver == DEFAULT_SOLVER and not self.settings and transfers:
            return replace(self, share=self.quick_share, solver=_NEAREST)
        # The user's own gap comes after, and holds.
        has_gap = "gap" in registry.settings_of(self.solver)
        settings = {"gap": _ANY, **self.settings} if has_gap else self.settings
        return replace(self, share=self.quick_share, settings=settings)

    def __call__(self, graph: Graph, budget: int) -> Schedule | None:
        problem = Problem(graph, budget, self.any_size)
        self.report(f"{self.solver}: {graph.name} within {format_bytes(budget)}")
        seconds = self.share * (self.time_limit or _seconds(graph))
        try:
            found = registry.solve(
                self.solver,
                problem,
                time_limit=seconds,
                settings=self.settings,
                report=self.report,
                bound_seconds=0.0,
                start=self.start,
            )
        except NotFoundError:
            line = f"{self.solver} had no answer in {duration(seconds)}"
            raise UnansweredError(line, fault=False) from None
        except InfeasibleError:
            # An answer, if not a proof: this solver has no schedule of so few bytes.
            return None
        except MemplanError:
            raise
        except Exception as error:
            # A solver's crash costs one question, not the hour of answers before it.
            raise UnansweredError(described(self.solver, error), fault=True) from error
        # The solver took Ctrl-C for itself; the search over batches has to end too.
        if found.interrupted:
            raise KeyboardInterrupt
        return found.schedule


def _seconds(graph: Graph) -> float:
    """Return the solver's time limit, if the user gives none."""
    return min(20.0, max(6.0, len(graph.operations) / 200))
