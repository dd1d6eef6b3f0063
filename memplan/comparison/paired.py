"""Wilcoxon's signed-rank test of two solvers on the problems of a comparison, with Holm's correction.

F. Wilcoxon: Individual comparisons by ranking methods. Biometrics Bulletin 1 (1945), 80-83.
S. Holm: A simple sequentially rejective multiple test procedure. Scand. J. Statistics 6 (1979), 65-70.

A problem's difference is log(time of one schedule / time of the other): the same for graphs of any length. A
schedule against none is an infinite difference, larger than all others; no schedule by either, and equal
times, are no difference and are left out (Wilcoxon's own treatment of zeros).

The p-value is two-sided: the probability, if either sign were as likely for each problem, of rank sums at
least as far apart. It is exact up to EXACT problems, by counting the 2^n assignments of signs by their rank
sum; ties have the mean of their ranks. Above, it is the normal approximation with the correction for ties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import copysign, erfc, inf, log, sqrt

from .summary import SAME, best_times, is_best, median_rows, solver_names
from .trials import Place, Row

EXACT = 50
"""Most differences for which the p-value is exact."""

FEWEST = 6
"""Differences below which no test can say anything: the smallest p-value of five is 2 / 2^5, above 5 %."""


@dataclass(frozen=True)
class Paired:
    """A solver compared with another on the problems that both were given.

    faster, slower, equal: number of problems; a schedule counts as faster than none.
    p: of the two-sided test; corrected: by Holm's method for all pairs of the comparison.
    """

    solver: str
    against: str
    faster: int
    slower: int
    equal: int
    p: float
    corrected: float


def paired(rows: Sequence[Row]) -> list[Paired]:
    """Compare the solver that is best on most problems with each other; of seeds the median row counts."""
    rows = median_rows(rows)
    names, best = solver_names(rows), best_times(rows)
    times: dict[str, dict[Place, float]] = {}
    for row in rows:
        own = times.setdefault(names[row.contestant], {})
        own[row.place] = inf if row.time is None or not row.solved else row.time
    wins = Counter(names[row.contestant] for row in rows if is_best(row, best))
    if not wins:
        return []
    first = max(times, key=lambda name: wins[name])
    found = [_compared(first, other, times[first], times[other]) for other in times if other != first]
    return _corrected(found)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the signed-rank test; 1 without differences. Zeros are left out."""
    differences = [each for each in differences if each]
    if not differences:
        return 1.0
    ranks = _doubled_ranks([abs(each) for each in differences])
    total = sum(ranks)
    positive = sum(rank for rank, each in zip(ranks, differences, strict=True) if each > 0)
    smaller = min(positive, total - positive)
    if len(differences) <= EXACT:
        # ways[s]: number of assignments of signs with doubled rank sum s
        ways = [1] + [0] * total
        for rank in ranks:
            # Downwards, so that each rank counts at most once.
            for at in range(total, rank - 1, -1):
                ways[at] += ways[at - rank]
        # Both tails have the same number of assignments.
        return min(1.0, 2 * sum(ways[: smaller + 1]) / 2 ** len(differences))
    deviation = sqrt(sum(rank * rank for rank in ranks)) / 2.0  # of a sum of independent ranks or nothing
    return min(1.0, erfc((total / 2.0 - smaller) / deviation / sqrt(2.0)))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Return twice the rank of each size, from 1; equal sizes have the mean of their ranks."""
    counts, below, doubled = Counter(sizes), 0, dict[float, int]()
    for size in sorted(counts):
        # Twice the mean of the ranks below + 1 to below + count.
        doubled[size] = 2 * below + counts[size] + 1
        below += counts[size]
    return [doubled[size] for size in sizes]


def _compared(solver: str, other: str, mine: Mapping[Place, float], theirs: Mapping[Place, float]) -> Paired:
    places = [place for place in mine if place in theirs and min(mine[place], theirs[place]) < inf]
    differences = [_difference(mine[place], theirs[place]) for place in places]
    faster = sum(each < 0 for each in differences)
    slower = sum(each > 0 for each in differences)
    p = signed_rank_p(differences)
    return Paired(
        solver=solver,
        against=other,
        faster=faster,
        slower=slower,
        equal=len(differences) - faster - slower,
        p=p,
        corrected=p,
    )


def _difference(mine: float, theirs: float) -> float:
    """Return log(mine / theirs), 0 if they are the same up to rounding."""
    if inf in (mine, theirs) or 0.0 in (mine, theirs):
        # 0 and ∞ have no quotient.
        return 0.0 if mine == theirs else copysign(inf, mine - theirs)
    difference = log(mine / theirs)
    # rounded: times that differ by the same factor are ties
    return 0.0 if abs(difference) <= SAME else round(difference, 12)


def _corrected(found: Sequence[Paired]) -> list[Paired]:
    """Return the pairs with Holm's p-values: the k-th smallest of m times m − k + 1, never decreasing."""
    ordered, least, by = sorted(found, key=lambda one: one.p), 0.0, dict[str, float]()
    for at, one in enumerate(ordered):
        least = by[one.against] = min(1.0, max(least, one.p * (len(ordered) - at)))
    return [
        Paired(
            solver=one.solver,
            against=one.against,
            faster=one.faster,
            slower=one.slower,
            equal=one.equal,
            p=one.p,
            corrected=by[one.against],
        )
        for one in found
    ]
