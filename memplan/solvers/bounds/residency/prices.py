"""The best prices for the memory rows: cutting planes, each a minimum cut.

    maximise over λ ≥ 0   L(λ) = the least over all cuts i of  cost_i + Σ_t λ_t · excess_{i,t}   (cuts.py)

L is concave. The cuts known so far give a linear program in λ (milp/planes.py). Its value is above the best;
its dual weighs the cuts, and their mean is the residency program's answer in fractions. The next prices are
halfway between the best so far and that program's (in-out separation). About fifteen cuts are enough.
Reference: W. Ben-Ameur, J. Neto, Acceleration of cutting-plane and column generation algorithms, 2007,
doi:10.1002/net.20137.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from ....graphs.arrays import Floats
from ...milp.planes import Planes
from ...milp.result import BackendError
from .cuts import Cut, Network

NEAR = 1e-5
"""Distance below the best at which the bound is good enough, as a share of the time of all operations."""

MOST_CUTS = 500
FIRST_PRICE = 0.05
"""Price of the whole limit to begin with, as a share of the time of all operations; the next are so too."""

HIGHEST_FIRST, HIGHEST_STEP, HIGHEST_LAST = 8.0, 16.0, 1e7
"""Limits on prices: the first, the factor by which it rises if the best prices reach it, and the last."""


@dataclass(frozen=True, eq=False)
class Priced:
    """A bound with the prices that give it.

    bound: a share of the time of all operations; ∞: no schedule fits.
    prices: per moment.
    recomputed: per operation, how far it is recomputed.
    """

    bound: float
    prices: Floats
    recomputed: Floats


def best_prices(
    network: Network, start: Floats, goal: float = inf, proceed: Callable[[], bool] = lambda: True
) -> Priced:
    """Search for the prices with the highest bound, by cutting planes.

    Each λ gives a true bound, so stopping early only makes it lower; so does a linear program that HiGHS
    can't solve.

    start: prices to begin with, a row of zeros for none.
    goal: a bound that is enough.
    """
    if not network.fits():
        return Priced(inf, start, np.zeros(network.operations))
    planes, highest = Planes(len(start), HIGHEST_FIRST), HIGHEST_FIRST
    prices = best = start if start.any() else np.full(len(start), FIRST_PRICE)
    bound, cuts = -inf, list[Cut]()
    while True:
        cut = network.cut(prices)
        cuts.append(cut)
        if cut.bound > bound:
            bound, best = cut.bound, prices
        # at other prices this cut costs at most what the plane says, and L is the least over all cuts
        planes.add(cut.bound - float(prices @ cut.excess), cut.excess)
        try:
            top = planes.highest()
            if top.value - bound <= NEAR and top.prices.max() >= highest and highest < HIGHEST_LAST:
                highest *= HIGHEST_STEP
                planes.limit(highest)
                top = planes.highest()
        except BackendError:
            return Priced(max(bound, 0.0), best, cut.recomputed.astype(np.float64))
        if top.value - bound <= NEAR or bound >= goal or len(cuts) == MOST_CUTS or not proceed():
            recomputed = np.average([cut.recomputed for cut in cuts], axis=0, weights=top.weights)
            # 0 is a bound without any price.
            return Priced(max(bound, 0.0), best, recomputed)
        # The program's own prices jump from corner to corner; halfway converges in fewer cuts.
        prices = (best + top.prices) / 2
