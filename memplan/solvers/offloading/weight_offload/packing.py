"""Orders of transfers that fill the windows between computations exactly: the problem's hard core.

Transfers of a queue that become possible at the same instant and are needed at the same instant (only runs
that take no time lie between) may be put in any order; if both links are busy all the time, the order
decides: what is freed and what is fetched between two demands for memory must be the demand to the byte
(Beaumont et al. 2022, Theorem 1: 3-partition). So each such class is packed into bins that it fills
exactly:

- bins of the bytes that one transfer the other way has, or that a link moves during one run, all equal;
- or those of the runs that follow the class's instant, one after the other.

A packing is a cover by multisets of sizes with a bin's sum (enumerated, `_PATTERNS` at most), found by an
integer program: Σ_p count_p · pattern_p = how many there are of each size (Gilmore, Gomory 1961). If
none is exact the order stays; the local search works on what has slack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from ...milp import solve as milp
from ...milp.linear import Linear, column_sum
from ...milp.model import Model
from ...milp.result import Settings
from ..cycles.cycle import Cycle

_PATTERNS = 30_000
_BINS = 4
"""Kinds of bins that are tried for a class, those that the most transfers or runs suggest first."""


def packed_ranks(cycle: Cycle, chosen: Sequence[int], seconds: float) -> Iterator[dict[int, int]]:
    """Yield ranks for weights that leave and return together, one mapping for each kind of bins that can be
    filled.

    seconds: the most that one integer program may take.
    """
    for weights, end in _classes(cycle, chosen):
        for bins in _bins(cycle, weights, chosen, end):
            groups = fill([cycle.sizes[weight] for weight in weights], bins, seconds)
            if groups is not None:
                yield _ranks(cycle, weights, groups)


def fill(sizes: Sequence[int], bins: Sequence[int], seconds: float) -> list[list[int]] | None:
    """Group the sizes, one group for each bin and with its sum; None if that is impossible, or not found."""
    if sum(sizes) != sum(bins):
        return None
    have = Counter(sizes)
    model = Model()
    columns: list[tuple[int, int, dict[int, int]]] = []
    for bin_size, count in Counter(bins).items():
        for pattern in _patterns(bin_size, sorted(have.items(), reverse=True)):
            if len(columns) == _PATTERNS:
                return None
            # How many bins of this size are filled with this multiset.
            columns.append((bin_size, model.column(0, count, integer=True), pattern))
        in_bins = column_sum(*(column for size, column, _p in columns if size == bin_size))
        model.add(in_bins.equals(count))
    # A bin without any pattern, or a size in none, and no packing is exact.
    if not ({*bins} <= {size for size, _c, _p in columns} and {*have} <= {x for *_, p in columns for x in p}):
        return None
    for size, count in have.items():
        packed = Linear((column, float(p[size])) for _bin, column, p in columns if size in p)
        model.add(packed.equals(count))
    result = milp.solve(model.program(), Settings(threads=1), time_limit=seconds)
    if result.x is None:
        return None
    stock: dict[int, list[list[int]]] = {}
    for bin_size, column, pattern in columns:
        group = [size for size, count in pattern.items() for _ in range(count)]
        stock.setdefault(bin_size, []).extend(list(group) for _ in range(round(result.x[column])))
    return [stock[bin_size].pop() for bin_size in bins]


def _patterns(total: int, sizes: Sequence[tuple[int, int]]) -> Iterator[dict[int, int]]:
    """Yield multisets of the sizes (each with how many there are, largest first) that sum up to `total`."""
    # below[at]: bytes of all sizes from `at` on; too few and the branch is cut.
    below = [*accumulate((size * count for size, count in reversed(sizes)), initial=0)][::-1]

    def extend(at: int, left: int, taken: dict[int, int]) -> Iterator[dict[int, int]]:
        if not left:
            yield dict(taken)
        elif at < len(sizes) and below[at] >= left:
            size, count = sizes[at]
            for number in range(min(count, left // size), -1, -1):
                if number:
                    taken[size] = number
                yield from extend(at + 1, left - number * size, taken)
                taken.pop(size, None)

    return extend(0, total, {})


def _classes(cycle: Cycle, chosen: Sequence[int]) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Yield weights of at least two sizes that leave at one instant and return at one, with these
    instants."""
    busy = [*accumulate((seconds > 0.0 for seconds in cycle.seconds), initial=0)]
    classes: dict[tuple[int, int], list[int]] = {}
    for number in chosen:
        interval = cycle.intervals[number]
        classes.setdefault((busy[interval.after + 1], busy[interval.before]), []).append(interval.weight)
    for end, weights in classes.items():
        if len({cycle.sizes[weight] for weight in weights}) > 1:
            yield weights, end


def _bins(
    cycle: Cycle, weights: Sequence[int], chosen: Sequence[int], ends: tuple[int, int]
) -> Iterator[list[int]]:
    total = sum(cycle.sizes[weight] for weight in weights)
    others = Counter(cycle.sizes[w] for w in {cycle.intervals[a].weight for a in chosen} - {*weights})
    for bin_size in _likely(_window_bytes(cycle), others):
        # One bin would hold everything, which leaves the order open.
        if total % bin_size == 0 and total > bin_size:
            yield [bin_size] * (total // bin_size)
    windows = _window_bytes(cycle)
    row: list[int] = []
    for window in range(len(windows)):
        row.append(windows[(ends[0] + window) % len(windows)])
        if sum(row) == total:
            yield row
        if sum(row) >= total:
            return


def _likely(windows: Iterable[int], others: Counter[int]) -> list[int]:
    return [size for size, _count in (Counter(windows) + others).most_common(_BINS) if size > 0]


def _window_bytes(cycle: Cycle) -> list[int]:
    """Return the bytes that the slower link moves during each run that takes time."""
    links = cycle.machine.links
    rate = min(link.rate_of(cycle.sizes) for link in (links.d2h, links.h2d) if link is not None)
    # Bytes are whole: with the seconds of 3-partition the product is whole but for rounding errors.
    return [round(seconds * rate) for seconds in cycle.seconds if seconds > 0.0]


def _ranks(cycle: Cycle, weights: Sequence[int], groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return per weight its position in the concatenated groups."""
    by_size: dict[int, list[int]] = {}
    for weight in weights:
        by_size.setdefault(cycle.sizes[weight], []).append(weight)
    order = [by_size[size].pop() for group in groups for size in group]
    return {weight: rank for rank, weight in enumerate(order)}
