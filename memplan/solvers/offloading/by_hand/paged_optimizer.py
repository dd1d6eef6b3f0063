"""Paged optimizers: optimizer states in host memory, each on the device for its update alone.

The update runs on the device. Its states are fetched right before it, one update after the other, as
bitsandbytes prefetches pages of unified memory and waits for each update. States below 100,000 elements are
not paged; here that is bytes. When memory runs short the driver evicts the pages that were used longest ago,
so the states of the first updates leave: as few as the budget needs.

Where this is kinder: pages move at the rate of pinned copies, and the way down runs alongside.

Reference: bitsandbytes, `is_paged=True` (`PagedAdamW8bit` and others), `Optimizer8bit.prefetch_state`.

Linear in the edges, plus for each policy the logarithm of the updates in simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.bounds import time_bound
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ...candidates import require_backward
from ...links import linked_machine
from ...problem import NotAcceptedError, Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ..layers.fewest import Policy, counts_of, fastest_of_fewest
from .activations import activations_setting, runs_by_activations

NAME = "paged-optimizer"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of paged-optimizer."""

    updates: int | None = setting(None, "updates whose states are paged; by default as few as fit", least=0)
    smallest: int = setting(100_000, "bytes from which a state is paged", least=0)
    activations: str = activations_setting()


@dataclass(frozen=True)
class _Pages:
    """The runs of an iteration, and per update with paged states its position and these states."""

    runs: Sequence[Run]
    states: Sequence[tuple[int, tuple[int, ...]]]

    def residency(self, count: int) -> Residency:
        """Return the decisions with the states of the first `count` updates on the host."""
        # Offloaded after its only use, a state comes back before the same update of the next iteration.
        offloaded: dict[TensorUse, int] = {
            (x, position): Memory.HOST for position, states in self.states[:count] for x in states
        }
        return Residency(self.runs, offloaded)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings, graph, clock = options.chosen(Settings), problem.graph, options.clock()
    states = (Kind.OPTIMIZER_STATE,)
    machine = linked_machine(NAME, problem, "optimizer states", states).machine
    require_backward(NAME, graph)
    policies: list[Policy] = []
    for activations, runs in runs_by_activations(graph, settings.activations):
        pages = _Pages(runs, list(_states(graph, runs, settings.smallest)))
        if not pages.states:
            raise NotAcceptedError(f"{NAME} moves optimizer states; {graph.name} has none that large")
        counts = counts_of(f"{NAME}: updates", settings.updates, len(pages.states))
        policies.append(Policy(f"activations: {activations}", counts, pages.residency))
    found = fastest_of_fewest(NAME, problem, machine, policies, clock)
    options.report(f"{NAME}: states of {found.count} updates on the host, {found.policy.name}")
    return SolverResult.of_heuristic(found.schedule, clock, time_bound(graph))


def _states(graph: Graph, runs: Sequence[Run], smallest: int) -> list[tuple[int, tuple[int, ...]]]:
    rows: list[tuple[int, tuple[int, ...]]] = []
    for position, (operation, _mode) in enumerate(runs):
        if graph.operations.phase[operation] == Phase.UPDATE:
            changed = graph.mutate_lists[operation]
            states = tuple(
                x
                for x in changed
                if graph.tensors.kind[x] == Kind.OPTIMIZER_STATE and graph.tensors.bytes[x] >= smallest
            )
            rows += [(position, states)] if states else []
    return rows
