"""Lower envelope of planes over prices, and its highest point, for cutting-plane methods.

    maximise θ  with  θ ≤ constant_i + Σ_t slope_{i,t} · price_t  for each plane i,  0 ≤ price_t ≤ limit

Planes are added one by one; HiGHS' simplex method goes on from where it was.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import highspy
import numpy as np

from ...graphs.arrays import Floats
from .result import BackendError


class Top(NamedTuple):
    """The highest point under the planes.

    weights: the program's dual: of the planes, at least 0, their sum 1. The planes' mean with these weights
        bounds θ from above by `value`, for all prices.
    """

    value: float
    prices: Floats
    weights: Floats


class Planes:
    def __init__(self, prices: int, limit: float) -> None:
        self.count = prices
        self.indices = np.arange(prices + 1, dtype=np.int32)
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.addVars(prices + 1, np.zeros(prices + 1), np.append(np.full(prices, limit), inf))
        # θ is the last column; HiGHS minimises, so −θ.
        self.highs.changeColCost(prices, -1.0)
        self.highs.changeColBounds(prices, -inf, inf)

    def limit(self, limit: float) -> None:
        for price in range(self.count):
            self.highs.changeColBounds(price, 0.0, limit)

    def add(self, constant: float, slopes: Floats) -> None:
        """Add a plane: θ ≤ constant + slopes · prices.

        slopes: shape (prices,).
        """
        self.highs.addRow(-inf, constant, self.count + 1, self.indices, np.append(-slopes, 1.0))

    def highest(self) -> Top:
        """Find the highest point under the planes, of which there is at least one.

        Raises BackendError if HiGHS finds none.
        """
        self.highs.run()
        if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise BackendError(
                f"highs gave up: {self.highs.modelStatusToString(self.highs.getModelStatus())}"
            )
        solution = self.highs.getSolution()
        # The sign of a dual depends on the row's side; its size is the weight.
        x, weights = np.array(solution.col_value), np.abs(np.array(solution.row_dual))
        # Within HiGHS' tolerance a price may be below 0, and the weights' sum may differ from 1.
        return Top(float(x[self.count]), np.maximum(x[: self.count], 0.0), weights / weights.sum())
