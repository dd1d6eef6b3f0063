"""Places the prefetches of a residency: early enough to be hidden, as far as the memory allows.

Copies down start at once. Copies up are placed by a look-ahead and within a cap (assembly.py says how), for
several look-aheads, with and without a reserve of memory; the simulator times each, and the fastest schedule
is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.graph import Graph
from ...graphs.machine import MOST_MEMORIES, Hierarchy, Machine, Memory
from ..errors import InvalidScheduleError
from ..schedule.schedule import DEFAULT_MODE, Initial, Schedule
from ..schedule.sequence import Run
from ..simulator.footprint import Footprint
from ..simulator.simulate import Figures, simulate
from .assembly import COMPUTE, assemble
from .lifetimes import count_moments, find_lifetimes, run_moment
from .residency import Residency
from .tensor_transfers import FIXED_STEP, TensorTransfers, derive_transfers, fetch_type

LOOK_AHEADS = (0.0, 1.0, 1.5, 3.0, inf)

LONGEST_LOOK_AHEAD = 1e9
"""Value of an infinite look-ahead in computations: ∞ · 0 s is not a number."""


class ResidencyTransfers:
    """The transfers of a residency, as far as they do not depend on the slots of prefetches.

    moves, fetches: rows of tensor_transfers.py.
    curves: bytes in each memory but the last, the rows, by moment, with every fetch just before its use.
    starts: seconds at which runs start if nothing waits; then the end of the last.
    initial: per tensor the memories in which it starts, as bits, with every fetch in its use's iteration.
    """

    def __init__(self, graph: Graph, hierarchy: Hierarchy, residency: Residency) -> None:
        residency = residency.without(graph.tensors.stays)
        self.graph, self.runs = graph, residency.runs
        moments = count_moments(len(residency.runs))
        self.starts = np.array(start_times(graph, residency.runs))
        self.hops = len(hierarchy) - 1
        self.curves = np.zeros((self.hops, moments), np.int64)
        # Workspace exists at moments of runs alone, which are the odd ones.
        self.device_curve[run_moment(0) :: 2] = [device_workspace(graph, run) for run in residency.runs]
        self.initial = memories_at_start(graph)
        rows = list[TensorTransfers]()
        footprint = Footprint(graph, hierarchy)
        sizes = footprint.sizes
        for x, lifetimes in _by_tensor(graph, residency):
            rows.append(derive_transfers(sizes, hierarchy, residency, lifetimes))
            for memory, spans in enumerate(rows[-1].spans):
                where, size = footprint.of(x, memory)
                for low, high in spans:
                    self.curves[where, low:high] += size
            if graph.persistent[x]:
                self.initial[x] = rows[-1].start
        self.moves: Any = np.concatenate([np.empty(0, FIXED_STEP), *(row.moves for row in rows)])
        nothing = np.empty(0, fetch_type(self.hops))
        self.fetches: Any = np.concatenate([nothing, *(row.fetches for row in rows)])

    @property
    def device_curve(self) -> Ints:
        return self.curves[Memory.DEVICE]

    @property
    def device_peak(self) -> int:
        """Return the bytes of the least budget that the residency needs."""
        return int(self.device_curve.max(initial=0))

    def steps(self, look_ahead: float, caps: Sequence[float]) -> tuple[Ints, NDArray[np.uint8]]:
        """Place the prefetches. Returns rows (verb, run or tensor, memory), a run by its position, and where
        each tensor starts, as bits. caps: bytes in each memory but the last that prefetches keep within."""
        initial = self.initial.copy()
        steps = np.empty((len(self.runs) + len(self.moves) + self.hops * len(self.fetches), 3), np.int64)
        variants = np.arange(len(self.runs), dtype=np.int64)
        count = assemble(
            self.moves,
            self.fetches,
            variants,
            self.starts,
            self.curves,
            np.array(caps, np.float64),
            min(look_ahead, LONGEST_LOOK_AHEAD),
            initial,
            steps,
        )
        return steps[:count], initial

    def schedule(self, steps: Ints, initial: NDArray[np.uint8]) -> Schedule:
        """Return the schedule of such steps. Raises InvalidScheduleError."""
        return schedule_of_steps(self.graph, self.runs, steps, initial)


def build_schedule(graph: Graph, residency: Residency) -> Schedule:
    """Build the schedule of these decisions as they are; the simulator says whether it is valid.

    Raises InvalidScheduleError if a persistent tensor would have to start in memories in which it may not
    (`may_start`: on the disk and elsewhere).
    """
    # No deeper memory is needed than the decisions name.
    deepest = max(residency.offloaded.values(), default=0)
    hierarchy = (graph.machine or Machine()).hierarchy if graph.tensors.spread else Machine().hierarchy
    transfers = ResidencyTransfers(graph, hierarchy.with_length(deepest + 1), residency)
    return transfers.schedule(*transfers.steps(0.0, [inf] * transfers.hops))


def simulate_residency(
    graph: Graph, machine: Machine, budget: int, residency: Residency
) -> tuple[Schedule, Figures] | None:
    """Simulate these decisions as they are; None if the simulator rejects their schedule."""
    try:
        return _simulate(graph, machine, budget, build_schedule(graph, residency))
    except InvalidScheduleError:
        return None


def place_prefetches(
    graph: Graph,
    machine: Machine,
    budget: int,
    residency: Residency,
    look_aheads: Sequence[float] = LOOK_AHEADS,
) -> tuple[Schedule, Figures] | None:
    """Find the fastest schedule over the look-aheads, with its figures; None if none fits.

    budget: device bytes. Slots that the residency names already are kept.
    """
    transfers = ResidencyTransfers(graph, machine.hierarchy, residency)
    # With every fetch just before its use: earlier ones take more.
    if transfers.device_peak > budget:
        return None
    _device, *below, _last = machine.hierarchy.tiers
    capacities = [inf if tier.capacity is None else tier.capacity for tier in below]
    best: tuple[Schedule, Figures] | None = None
    # Different look-aheads often place the same steps: each placement is simulated once.
    largest, tried = int(transfers.fetches["size"].max(initial=0)), set[bytes]()
    # With the largest fetch's bytes left free, nothing waits for a copy to the host that is still under way.
    for reserve in (0, largest):
        for look_ahead in look_aheads:
            steps, initial = transfers.steps(look_ahead, (budget - reserve, *capacities))
            if steps.tobytes() in tried:
                continue
            tried.add(steps.tobytes())
            try:
                found = _simulate(graph, machine, budget, transfers.schedule(steps, initial))
            except InvalidScheduleError:
                continue
            if best is None or found[1].time < best[1].time:
                best = found
    return best


def schedule_of_steps(graph: Graph, runs: Sequence[Run], steps: Ints, initial: NDArray[np.uint8]) -> Schedule:
    """Convert assembled steps to a schedule. Raises InvalidScheduleError if a tensor would start in memories
    in which it may not (`may_start`).

    runs: those that the second column of a COMPUTE step counts. initial: memories per tensor, as bits.
    """
    steps, table = steps.copy(), np.array(runs, np.int64).reshape(-1, 2)
    computes = steps[:, 0] == COMPUTE
    # A run's position becomes its operation and its mode.
    steps[computes, 1:] = table[steps[computes, 1]]
    groups = list[tuple[tuple[int, ...], list[int]]]()
    for bits in np.unique(initial[graph.persistent]).tolist():
        tensors: list[int] = np.flatnonzero(graph.persistent & (initial == bits)).tolist()
        memories = tuple(memory for memory in range(MOST_MEMORIES) if bits >> memory & 1)
        if not may_start(bits):
            name = graph.tensors.name[tensors[0]]
            fault = f"{name} would start in more memories than one, and not on device and host"
            raise InvalidScheduleError("initial", fault, step=None, tensor=name)
        if bits > 1 << Memory.DEVICE:
            groups.append((memories, tensors))
    columns = steps[:, 0].astype(np.uint8), steps[:, 1].astype(np.int32), steps[:, 2].astype(np.int32)
    return Schedule(*columns, Initial(groups=groups))


def may_start(memories: int) -> bool:
    """Tell whether a tensor may start in these memories, as bits: in one at most, or on device and host.

    The schedule file has words for others, too; what is placed here does not use them.
    """
    return memories & (memories - 1) == 0 or memories == 1 << Memory.DEVICE | 1 << Memory.HOST


def memories_at_start(graph: Graph) -> NDArray[np.uint8]:
    """Return per tensor the memories in which it starts if nothing is decided, as bits."""
    spread = graph.spread & graph.persistent
    return np.where(spread, 1 << Memory.PEERS, graph.resident.astype(np.int64)).astype(np.uint8)


def start_times(graph: Graph, runs: Sequence[Run]) -> list[float]:
    """Return the seconds at which each run starts on the compute queue if nothing waits.

    The last entry is the end of the last run.
    """
    clock, starts = 0.0, list[float]()
    for operation, mode in runs:
        starts.append(clock)
        if mode == DEFAULT_MODE or not graph.on_host(operation, mode):
            clock += graph.seconds(operation, mode)
    return [*starts, clock]


def device_workspace(graph: Graph, run: Run) -> int:
    """Return the bytes that a run takes on the device for itself; 0 for a run on the host."""
    return 0 if graph.on_host(*run) else graph.workspace(*run)


def _by_tensor(graph: Graph, residency: Residency) -> Iterator[tuple[int, list[Any]]]:
    """Yield each tensor with its lifetimes, in order."""
    found: dict[int, list[Any]] = {}
    for lifetime in find_lifetimes(graph, residency.runs):
        # `find_lifetimes` has the last of each tensor first.
        found.setdefault(lifetime.tensor, []).insert(0, lifetime)
    yield from found.items()


def _simulate(graph: Graph, machine: Machine, budget: int, schedule: Schedule) -> tuple[Schedule, Figures]:
    return schedule, simulate(graph, schedule, budget=budget, machine=machine).figures
