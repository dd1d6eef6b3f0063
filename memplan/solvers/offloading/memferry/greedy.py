"""MemFerry's Algorithm 1 with backtracking, corrected, and its greedy choice of DFGB layers.

O(L²) for L layers.
| paper       | here       |                                                            |
|-------------|------------|------------------------------------------------------------|
| T_all       | total      | seconds of the forward part so far                         |
| T_res       | spare      | seconds by which the computations end after the link      |
| tag         | first      | the first layer that backtracking may turn to DHA          |
| P           | treatments |                                                            |

Where we differ from the print: line 3 compares with the seconds that the fetch is late, max(T_trans - T_res,
0); backtracking tries the GFGB layers in [tag, l-1] alone, from the last that waited (whose wait goes with
its turn; turns before it give less than `gain` says), and counts what it has turned in T_all; line 30
assigns T_all and T_res, it does not add to them. So T_all is what the model takes. The paper has no
algorithm for DFGB: this one goes through the backward part and fetches a DHA layer's weights if that ends
its backward earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from .estimate import Treatment, forward_estimate
from .layers import Costs


def greedy(costs: Sequence[Costs]) -> list[Treatment]:
    return with_returns(costs, Forward(costs).treatments)


class Forward:
    """The forward part by Algorithm 1. treatments: GFGB or DHA. total: seconds of the forward part
    (T_all).
    """

    def __init__(self, costs: Sequence[Costs]) -> None:
        self.costs = costs
        self.treatments: list[Treatment] = []
        self.waits: list[float] = []
        self.total = self.spare = 0.0
        self.first = 0
        for number, layer in enumerate(costs):
            late = max(layer.fetch - self.spare, 0.0)
            self.waits.append(0.0)
            if layer.direct_forward <= layer.forward + late:  # line 3
                self._advance(layer.direct_forward, layer.direct_forward)  # line 5
                self.treatments.append(Treatment.DHA)
            else:
                if late:
                    self._backtrack(number)
                self._advance(layer.forward, layer.forward - layer.fetch)  # line 9
                self.treatments.append(Treatment.GFGB)
            self._advance(layer.between, layer.between)  # line 15

    def _advance(self, seconds: float, spare: float) -> None:
        self.total += seconds
        self.spare += spare

    def _backtrack(self, number: int) -> None:
        """Change earlier layers to DHA while that makes the wait for this layer's fetch cheaper.

        What is left of the wait is added.
        """
        fetch = self.costs[number].fetch
        for earlier in range(self.first, number):
            if fetch <= self.spare:
                return
            layer = self.costs[earlier]
            if self.treatments[earlier] != Treatment.GFGB or layer.direct_forward == inf:
                continue
            longer = layer.direct_forward - layer.forward - self.waits[earlier]
            gain = layer.fetch + longer  # line 21
            if longer + max(fetch - self.spare - gain, 0.0) < fetch - self.spare:  # lines 22 to 24
                self.treatments[earlier], self.first = Treatment.DHA, earlier + 1
                self._advance(longer, gain)
        wait = max(fetch - self.spare, 0.0)
        if wait:
            self._advance(wait, wait)
            self.waits[number], self.first = wait, number


def with_returns(costs: Sequence[Costs], treatments: Sequence[Treatment]) -> list[Treatment]:
    """Change to DFGB the DHA layers whose backward then ends earlier, and all that have no direct
    backward."""
    result = list(treatments)
    compute, link = forward_estimate(costs, treatments)
    for number in reversed(range(len(costs))):
        layer = costs[number]
        compute += layer.between_backward
        direct, fetched = compute + layer.direct_backward, max(compute, link + layer.fetch) + layer.backward
        if result[number] == Treatment.DHA and fetched < direct:
            result[number] = Treatment.DFGB
            link += layer.fetch
            compute = fetched
        else:
            compute = direct if result[number] == Treatment.DHA else compute + layer.backward
    return result
