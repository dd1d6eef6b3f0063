"""Choice of the offload intervals that keep the links least busy, by an integer program.

    minimise  T + Σ_a exposed_a x_a + ε (Σ up + Σ down)
    where     T ≥ Σ_v up_v y_v,  T ≥ Σ_a down_a x_a,  x_a ≤ y_version(a),  and for each run
              need + Σ sizes - Σ_{a covers the run} |w_a| x_a ≤ limit - spare · own weight

x_a: the interval is chosen; y_v: version v is copied to the host; exposed: by how much the copies take longer
than the runs between. What a run covers is stricter than in Algorithm 1, whose selection is by list order
alone: during runs that take no time nothing can be fetched, so a weight that one of them needs is there
before the first; and what changes during them does not leave before they are over.

Exponential at worst; stopped by a time limit, with the best so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ...milp import solve as milp
from ...milp.linear import Linear, column_sum
from ...milp.model import Model
from ...milp.result import Result, Settings
from ..cycles.cycle import FROZEN, Cycle, WeightInterval

_GAP = 1e-3
_EPSILON = 1e-3


def least_busy_intervals(cycle: Cycle, spare: float, seconds: float) -> list[int] | None:
    """Return the numbers of the intervals that keep links least busy.

    None if none suffice or time is too short.
    """
    covers = [prompt_runs(cycle, interval) for interval in cycle.intervals]
    exposed = [
        max(0.0, up + down - sum(cycle.seconds[run] for run in runs))
        for (up, down), runs in zip(_copies(cycle), covers, strict=True)
    ]
    result = _solved(cycle, covers, exposed, spare, seconds)
    if result is None or result.x is None:
        return None
    return [number for number in range(len(cycle.intervals)) if result.x[1 + number] > 0.5]


def link_bound(cycle: Cycle, seconds: float) -> float:
    """Return the seconds that the busier link needs at least; ∞ if moving weights does not suffice.

    Every operation runs once, in traced order, and only weights move. By list order alone, so the bound holds
    for all such schedules.
    """
    covers = [[run for stretch in cycle.covered(interval) for run in stretch] for interval in cycle.intervals]
    result = _solved(cycle, covers, [0.0] * len(covers), 0.0, seconds, epsilon=0.0)
    return inf if result is None else max(0.0, result.bound)


def _copies(cycle: Cycle) -> list[tuple[float, float]]:
    """Return per interval the seconds of its two copies."""
    return [
        (cycle.offload_seconds[a.weight] * (a.version != FROZEN), cycle.prefetch_seconds[a.weight])
        for a in cycle.intervals
    ]


def _solved(
    cycle: Cycle,
    covers: Sequence[Sequence[int]],
    exposed: Sequence[float],
    spare: float,
    seconds: float,
    epsilon: float = _EPSILON,
) -> Result | None:
    """Solve the integer program; None if a run does not fit. Column 0 is T, then follow the intervals."""
    model = Model()
    longest = model.variable(0.0, 1e30, cost=1.0)
    chosen = [
        model.column(integer=True, cost=epsilon * down + late)
        for (_up, down), late in zip(_copies(cycle), exposed, strict=True)
    ]
    # Continuous: the least y allowed is the largest x, so 0 or 1, and a larger one never helps.
    stored = [model.column(cost=epsilon * cycle.offload_seconds[weight]) for weight, _run in cycle.changed_by]
    for interval, column in zip(cycle.intervals, chosen, strict=True):
        if interval.version != FROZEN:
            model.add(column_sum(stored[interval.version]) >= column_sum(column))
    ups = zip(stored, cycle.changed_by, strict=True)
    downs = zip(chosen, cycle.intervals, strict=True)
    model.add(longest >= Linear((column, cycle.offload_seconds[weight]) for column, (weight, _run) in ups))
    model.add(
        longest >= Linear((column, cycle.prefetch_seconds[interval.weight]) for column, interval in downs)
    )
    if not _memory(model, cycle, chosen, covers, spare):
        return None
    return milp.solve(model.program(), Settings(threads=1, gap=_GAP), time_limit=seconds)


def _memory(
    model: Model, cycle: Cycle, chosen: Sequence[int], covers: Sequence[Sequence[int]], spare: float
) -> bool:
    """Add one row for each run, in units of the limit; rows that another implies are left out.

    Returns False if a run does not fit although all weights that can be are offloaded.
    """
    covering: list[list[int]] = [[] for _ in range(cycle.runs)]
    for number, runs in enumerate(covers):
        for run in runs:
            covering[run].append(number)
    tightest: dict[tuple[int, ...], float] = {}
    for run, intervals in enumerate(covering):
        own = spare * sum(cycle.sizes[weight] for weight in cycle.used_by[run])
        excess = cycle.need[run] + sum(cycle.sizes) + own - cycle.limit
        # Runs that the same intervals cover have the same left side: only the largest excess binds.
        key = tuple(intervals)
        tightest[key] = max(tightest.get(key, 0.0), excess)
    # Coefficients near 1 suit the solver's absolute tolerances; bytes do not.
    unit = 1.0 / max(1, cycle.limit)
    for intervals, excess in tightest.items():
        if excess > 0.0:
            sizes = [cycle.sizes[cycle.intervals[a].weight] for a in intervals]
            if sum(sizes) < excess:
                return False
            gone = Linear((chosen[a], size * unit) for a, size in zip(intervals, sizes, strict=True))
            model.add(gone >= excess * unit)
    return True


def prompt_runs(cycle: Cycle, interval: WeightInterval) -> list[int]:
    """Return the runs that an interval covers, given that fetches and copies take time."""
    runs = cycle.runs
    covered = [run for stretch in cycle.covered(interval) for run in stretch]
    # A use that takes no time, after others that take none: the fetch has ended before the first of them.
    while covered and not cycle.seconds[covered[-1]] and not cycle.seconds[interval.before]:
        covered.pop()
    if interval.version != FROZEN:
        changed = cycle.changed_by[interval.version][1]
        between = range(changed + 1, changed + 1 + (interval.after - changed) % runs)
        if not any(cycle.seconds[run % runs] for run in between):
            # No time passes between the change and the last use, so the copy has not begun: the weight is
            # still there during runs that take no time.
            first = next((i for i, run in enumerate(covered) if cycle.seconds[run]), len(covered))
            del covered[:first]
    return covered
