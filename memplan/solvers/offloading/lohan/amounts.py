"""Search for the amount that LoHan swaps: amounts around its estimate's, each as a schedule that is
simulated.

LoHan swaps whatever its order names, and leaves the device's memory for a larger batch; here the batch is
given, and of what is swapped some is kept on the device after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import inf

from ....graphs.graph import Graph
from ....graphs.machine import Machine, Memory
from ....planner.residency.lifetimes import run_moment
from ....planner.residency.prefetch_placement import ResidencyTransfers, place_prefetches, simulate_residency
from ....planner.residency.residency import Residency
from ....planner.schedule.schedule import Schedule
from ...candidates import device_limit
from ...problem import Problem
from ..layers.offload_intervals import (
    Uses,
    activation_intervals,
    gradient_intervals,
    state_intervals,
    weight_intervals,
)
from ..layers.runs import layer_runs
from .costs import traffic_of
from .swap import SwapOrder, best_prefix

LIKELY = 1.5
"""The look-ahead with which amounts are compared."""

_IN_FLIGHT = (3, 6, 12)
"""Layers whose states the host keeps room for: more if less does not hold."""


class Amounts:
    """A search over the number of swaps that are made, in their order.

    forced: the share of what can be swapped, for one amount and no other. late: updates come after backward.
    on_host: no activation goes to the disk. tried: count -> simulated seconds, ∞ if it does not fit.
    best: seconds, schedule and count.
    """

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        order: SwapOrder,
        states: Memory,
        *,
        keep: float,
        late: bool = False,
        forced: float | None = None,
        on_host: bool = False,
    ) -> None:
        self.problem, self.machine, self.order, self.states = problem, machine, order, states
        self.late, self.on_host = late, on_host
        self.room = int(keep * device_limit(problem))
        # The device's peak with the fewest swaps; above it there is room for swapped activations that stay
        # after all.
        bare = ResidencyTransfers(problem.graph, machine.hierarchy, next(self._all_offloaded(0))).device_peak
        traffic = traffic_of(
            order.layers,
            machine,
            states,
            _IN_FLIGHT[0],
            on_device=max(0, self.room - bare),
            late=late,
        )
        self.prefixes = order.prefixes(traffic)
        self.estimate = best_prefix(self.prefixes)
        self.forced = None if forced is None else self._count_of(forced)
        self.tried: dict[int, float] = {}
        self.best: tuple[float, Schedule, int] | None = None

    def _count_of(self, share: float) -> int:
        """Return the number of swaps that make up this share of the bytes of all."""
        first, last = self.prefixes[0].bytes, self.prefixes[-1].bytes
        # Prefixes grow, and the first has the fewest swaps: the last that isn't above the share.
        return sum(prefix.bytes <= first + share * (last - first) for prefix in self.prefixes) - 1

    def estimate_text(self) -> str:
        chosen = self.estimate
        return (
            f"by its own estimate {chosen.seconds:.6g} s, swapping {chosen.count} of "
            f"{len(self.order.swaps)} activations and {len(self.order.always)} layers' outputs, "
            f"{chosen.bytes:,} B, and recomputing the rest in {chosen.recomputed:.6g} s"
        )

    def best_text(self) -> str:
        if self.best is None:
            return "no amount fits"
        seconds, _schedule, count = self.best
        model = self.prefixes[count].seconds
        return (
            f"swapping {count} of {len(self.order.swaps)}: {seconds:.6g} s, by its own estimate {model:.6g} s"
        )

    def next_count(self) -> int | None:
        """Return the next number of swaps to try; None if there is none.

        A forced number is the only one. Else the estimate's, all, none; then the middle of the wider gap
        around the best so far.
        """
        if self.forced is not None:
            return None if self.forced in self.tried else self.forced
        for count in (self.estimate.count, len(self.order.swaps), 0):
            if count not in self.tried:
                return count
        if self.best is None:
            return None
        best = self.best[2]
        below = max((count for count in self.tried if count < best), default=best)
        above = min((count for count in self.tried if count > best), default=best)
        # The wider gap: seconds need not have one minimum over the counts.
        low, high = (below, best) if best - below > above - best else (best, above)
        return (low + high) // 2 if high - low > 1 else None

    def try_count(self, count: int, look_aheads: Sequence[float] = (LIKELY,)) -> None:
        """Simulate schedules with so many swaps, until one fits.

        If no look-ahead fits, each fetch comes just before its use: the host may hold no more.
        """
        self.tried.setdefault(count, inf)
        graph, machine, limit = self.problem.graph, self.machine, device_limit(self.problem)
        for residency in self.residencies(count):
            found = place_prefetches(graph, machine, limit, residency, look_aheads)
            found = found or simulate_residency(graph, machine, limit, residency)
            if found:
                self.tried[count] = min(found[1].time, self.tried[count])
                if self.best is None or found[1].time < self.best[0]:
                    self.best = found[1].time, found[0], count
                return

    def residencies(self, count: int) -> Iterator[Residency]:
        """Yield residencies with more and more activations on the disk.

        What the device has room for stays there.
        """
        for residency in self._all_offloaded(count):
            graph, swapped = self.order.layers.graph, self.order.tensors(count)
            yield kept_on_device(graph, self.machine, residency, swapped, self.room)

    def _all_offloaded(self, count: int) -> Iterator[Residency]:
        layers = self.order.layers
        swapped = self.order.tensors(count)
        plan = layer_runs(layers, self.order.kept | swapped, host=True, after=self.late)
        uses = Uses(layers.graph, plan)
        waiting = self.states if self.late else Memory.HOST
        offloads = weight_intervals(layers, uses, self.states, waiting) | state_intervals(
            layers, uses, self.states
        )
        offloads |= gradient_intervals(layers.gradients, uses.device)
        # A host that holds everything needs no room for layers in flight.
        limited = self.states == Memory.DISK and self.machine.host_capacity is not None
        for in_flight in _IN_FLIGHT if limited else _IN_FLIGHT[:1]:
            room = traffic_of(layers, self.machine, self.states, in_flight).room
            yield Residency(
                plan.runs, offloads | activation_intervals(uses, self._where(uses, swapped, room))
            )

    def _where(self, uses: Uses, swapped: set[int], room: float) -> dict[int, Memory]:
        """Return per swapped activation its memory: the last ones in host memory, as far as there is room,
        else disk."""
        where: dict[int, Memory] = {}
        sizes = self.order.layers.graph.tensors.bytes
        # Last made first: those come back first, and the disk gets the longest intervals.
        for x in sorted((x for x in swapped if x in uses.device), key=lambda x: -uses.device[x][0]):
            room -= int(sizes[x])
            # Without a disk in use all goes to the host: the simulator says whether it fits.
            fits = room >= 0 or self.on_host or self.states == Memory.HOST
            where[x] = Memory.HOST if fits else Memory.DISK
        return where


def kept_on_device(
    graph: Graph, machine: Machine, residency: Residency, swapped: AbstractSet[int], room: int
) -> Residency:
    """Return the residency with the swapped activations of the shortest intervals kept. room: device bytes.

    What is produced last is needed first: it is kept as long as the bytes at every moment stay within the
    room, with all fetches just before their uses. Linear in the swapped tensors times the runs.
    """
    transfers = ResidencyTransfers(graph, machine.hierarchy, residency)
    curve, offloads = transfers.device_curve, dict(residency.offloaded)
    fetches = transfers.fetches[["tensor", "use"]].tolist()
    # Ascending, so that the last use of a tensor stays.
    back = {x: use for x, use in sorted(fetches, key=lambda fetch: fetch[1]) if x in swapped}
    for x, position in sorted(residency.offloaded, key=lambda place: -place[1]):
        if x in back:
            interval = slice(run_moment(position) + 1, back[x])
            if int(curve[interval].max(initial=0)) + int(graph.tensors.bytes[x]) <= room:
                curve[interval] += graph.tensors.bytes[x]
                del offloads[x, position]
    return replace(residency, offloaded=offloads)
