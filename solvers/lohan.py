"""LoHan: states on the disk, updates on the CPU beside backward, and as many activations swapped as pay.

Liao et al., "LoHan: low-cost high-performance framework to fine-tune 100B model on a consumer GPU"
(arXiv:2403.06504). Weights come layer by layer from the disk (the host, where there is none), in forward and
again in backward; a gradient goes to the host once it is complete, where its update runs at once: reading
states from the disk, updating and writing back go on side by side for different weights (active gradient
offloading, section IV-C). What is swapped of the activations: lohan_swap.py; by which time: lohan_costs.py.

From decisions to a schedule. The paper says how much is swapped, not what goes to the disk: the activations
of the first layers, which stay away longest, go there once the host is full. Where updates and fetches stand
is worked out by planner/transfers.py. The estimate assumes that everything overlaps; so other amounts around
it are simulated too, and the fastest schedule is the answer. Where nothing need move, nothing moves; of what
would, some stays on the device where that has room (lohan_stay.py; the paper's LoHan: stay=0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..graphs.errors import InputError
from ..graphs.machine import Machine, Memory
from ..planner.demand import Demand
from ..planner.residence import Residence
from ..planner.schedule import Schedule
from ..planner.transfers import LOOK_AHEADS, placed
from .chains import device_limit, plain_candidate
from .cpu_updates import layers_updated_on_cpu, refused
from .layer_absences import (
    Uses,
    activation_absences,
    gradient_absences,
    state_absences,
    weight_absences,
)
from .layer_runs import layer_runs
from .links import linked_machine
from .lohan_costs import traffic_of
from .lohan_stay import staying
from .lohan_swap import SwapOrder, best_prefix
from .problem import Answer, Options, Problem, Status
from .zero_infinity import states_memory

NAME = "lohan"

LIKELY = 1.5
"""The look-ahead with which amounts are compared."""
_IN_FLIGHT = (3, 6, 12)
"""How many layers' states the host keeps room for: more where less does not hold."""


@dataclass(frozen=True)
class Settings:
    """states: where model states lie, host or disk; auto: the disk, if there is one, where they would take
    more than half of the host (the paper: always the disk).
    stay: share of the budget within which what would be swapped stays on the device (the paper: 0).
    amounts: of swapped activations that are simulated at most. duplex: the estimate's disk reads and writes
    at once, like the simulator's; else one at a time, as in (5)."""

    states: str = "auto"
    amounts: int = 8
    duplex: bool = True
    stay: float = 0.7

    def __post_init__(self) -> None:
        if self.states not in ("auto", "host", "disk"):
            raise InputError(f"states must be auto, host or disk, not {self.states!r}")
        if self.amounts < 1:
            raise InputError(f"amounts must be 1 or more, not {self.amounts}")
        if not 0 <= self.stay <= 1:
            raise InputError(f"stay must be from 0 to 1, not {self.stay}")


def solve(problem: Problem, options: Options) -> Answer:
    settings: Settings = options.settings or Settings()
    deadline = inf if options.time_limit is None else monotonic() + options.time_limit
    machine = linked_machine(NAME, problem, "weights, gradients, optimizer states and activations").machine
    layers = layers_updated_on_cpu(NAME, problem)
    states = states_memory(NAME, machine, settings.states, layers)
    plain = plain_candidate(problem.graph)
    if plain.peak <= device_limit(problem):
        return Answer(plain.schedule, Status.HEURISTIC)
    amounts = _Amounts(problem, machine, SwapOrder(layers), states, settings)
    options.report(amounts.estimate_told())
    interrupted = False
    try:
        while len(amounts.tried) < settings.amounts and (count := amounts.next_count()) is not None:
            amounts.try_count(count)
            if monotonic() > deadline or options.cancelled():
                break
        if amounts.best is not None and monotonic() <= deadline:
            amounts.try_count(amounts.best[2], LOOK_AHEADS)
    except KeyboardInterrupt:
        interrupted = True
    if amounts.best is None:
        raise refused(NAME, problem, machine, amounts.ways(amounts.estimate.count))
    options.report(f"swapping {amounts.best[2]} of {len(amounts.order.swaps)}: {amounts.best[0]:.6g} s")
    stopped = interrupted or monotonic() > deadline
    status = Status.FEASIBLE if stopped else Status.HEURISTIC
    return Answer(amounts.best[1], status, interrupted=interrupted)


class _Amounts:
    """Amounts of swapped activations by how many of the swaps are made. tried: count -> simulated seconds, ∞
    where it does not fit. best: seconds, schedule and count."""

    def __init__(
        self, problem: Problem, machine: Machine, order: SwapOrder, states: Memory, settings: Settings
    ) -> None:
        self.problem, self.machine, self.order, self.states = problem, machine, order, states
        self.room = int(settings.stay * device_limit(problem))
        bare = Demand(problem.graph, machine, next(self._all_away(0))).peak
        traffic = traffic_of(
            order.layers,
            machine,
            states,
            _IN_FLIGHT[0],
            duplex=settings.duplex,
            stays=max(0, self.room - bare),
        )
        self.estimate = best_prefix(order.prefixes(traffic))
        self.tried: dict[int, float] = {}
        self.best: tuple[float, Schedule, int] | None = None

    def estimate_told(self) -> str:
        chosen = self.estimate
        return (
            f"by its own estimate {chosen.seconds:.6g} s, swapping {chosen.count} of "
            f"{len(self.order.swaps)} activations and {len(self.order.always)} layers' outputs, "
            f"{chosen.bytes:,} B, and making the rest again in {chosen.again:.6g} s"
        )

    def next_count(self) -> int | None:
        """The estimate's, all, none; then the middle of the wider gap beside the best so far."""
        for count in (self.estimate.count, len(self.order.swaps), 0):
            if count not in self.tried:
                return count
        if self.best is None:
            return None
        best = self.best[2]
        below = max((count for count in self.tried if count < best), default=best)
        above = min((count for count in self.tried if count > best), default=best)
        low, high = (below, best) if best - below > above - best else (best, above)
        return (low + high) // 2 if high - low > 1 else None

    def try_count(self, count: int, look_aheads: Sequence[float] = (LIKELY,)) -> None:
        self.tried.setdefault(count, inf)
        for way in self.ways(count):
            found = placed(self.problem.graph, self.machine, device_limit(self.problem), way, look_aheads)
            if found:
                self.tried[count] = min(found[1].time, self.tried[count])
                if self.best is None or found[1].time < self.best[0]:
                    self.best = found[1].time, found[0], count
                return

    def ways(self, count: int) -> Iterator[Residence]:
        """More and more of the activations on the disk; what the device has room for stays there."""
        for way in self._all_away(count):
            graph, swapped = self.order.layers.graph, self.order.tensors(count)
            yield staying(graph, self.machine, way, swapped, self.room)

    def _all_away(self, count: int) -> Iterator[Residence]:
        layers = self.order.layers
        swapped = self.order.tensors(count)
        plan = layer_runs(layers, self.order.kept | swapped, host=True, after=False)
        uses = Uses(layers.graph, plan)
        away = weight_absences(layers, uses, self.states) | gradient_absences(layers, uses)
        away |= state_absences(layers, uses, self.states)
        limited = self.states == Memory.DISK and self.machine.host_capacity is not None
        for in_flight in _IN_FLIGHT if limited else _IN_FLIGHT[:1]:
            room = traffic_of(layers, self.machine, self.states, in_flight).room
            yield Residence(plan.runs, away | activation_absences(uses, self._where(uses, swapped, room)))

    def _where(self, uses: Uses, swapped: set[int], room: float) -> dict[int, Memory]:
        """The activations made last in host memory, as far as there is room; the others on the disk."""
        where: dict[int, Memory] = {}
        sizes = self.order.layers.graph.tensors.bytes
        for x in sorted((x for x in swapped if x in uses.device), key=lambda x: -uses.device[x][0]):
            room -= int(sizes[x])
            where[x] = Memory.HOST if room >= 0 or self.states == Memory.HOST else Memory.DISK
        return where
