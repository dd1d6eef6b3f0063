"""The best of all choices of treatments in MemFerry's model, 3^L of them, by dynamic programming over states.

The layers are taken from the outside in: layer 0 is the first to run forward and the last to run backward. A
state after some layers, all of them smaller-is-better:

    compute, link   when the computations and the link have come this far in the forward part
    rest            seconds of these layers' backward part once layer l+1's has ended
    links_rest      the same counted from when the link has brought layer l+1's weights: -∞ without DFGB
    room            bytes of weights that are on the device from forward to backward

A choice ends at max(compute + rest, link + links_rest). Dominated states go, and those that cannot beat the
best known; so the answer is optimal for the model, unless more than `states` are left at some layer: then
those that promise most are kept, and `exact` says so. O(L S²) for S states per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from .estimate import Treatment, estimate
from .layers import Costs

States = NDArray[np.float64]
"""Rows of (compute, link, rest, links_rest, room)."""


@dataclass(frozen=True)
class BestTreatments:
    """The result of the search.

    treatments: per layer. seconds: by the model. exact: no other choice within the room is faster.
    """

    treatments: list[Treatment]
    seconds: float
    exact: bool


def best_choice(
    costs: Sequence[Costs],
    *,
    room: float = inf,
    twice: bool = False,
    known: Sequence[Treatment] | None = None,
    states: int = 1000,
    proceed: Callable[[], bool] = lambda: True,
) -> BestTreatments | None:
    """Return the best choice that keeps the weights on the device within `room` bytes; None if there is none.

    twice: a layer's weights may be fetched twice, and take no memory in between. known: a choice to start
    from, within the room. proceed: false once the time is up; then the known one is returned.
    """
    least_time, least_room = _outlook(costs, twice)
    # A little above, or rounding errors could cut off the known choice itself.
    limit = inf if known is None else estimate(costs, known) * (1 + 1e-12)
    front: States = np.array([[0.0, 0.0, 0.0, -inf, 0.0]])
    history: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    exact = True
    for number, layer in enumerate(costs):
        if not proceed():
            return None if known is None else BestTreatments(list(known), estimate(costs, known), exact=False)
        grown, parents, treatments = _grown(front, layer, twice)
        promise = _ends(grown, least_time[number + 1])
        alive = (promise <= limit) & (grown[:, 4] + least_room[number + 1] <= room)
        # Without a limit on room, a state with less of it must not survive for that alone.
        if room == inf:
            grown[:, 4] = 0.0
        kept = np.flatnonzero(alive)
        kept = kept[_undominated(grown[kept])]
        if len(kept) > states:
            kept, exact = kept[np.argsort(promise[kept], kind="stable")[:states]], False
        if not len(kept):
            return None if known is None else BestTreatments(list(known), estimate(costs, known), exact)
        front = grown[kept]
        history.append((parents[kept], treatments[kept]))
    ends = _ends(front)
    at = int(np.argmin(ends))
    seconds = float(ends[at])
    found: list[Treatment] = []
    for parents, treatments in reversed(history):
        found.append(Treatment(int(treatments[at])))
        at = int(parents[at])
    return BestTreatments(found[::-1], seconds, exact)


def _ends(states: States, left: float = 0.0) -> NDArray[np.float64]:
    """Return per state a lower bound on the seconds of all choices that continue it.

    left: seconds that the computations of further layers add at least.
    """
    return np.maximum(states[:, 0] + states[:, 2] + left, states[:, 1] + states[:, 3])


def _outlook(costs: Sequence[Costs], twice: bool) -> tuple[list[float], list[float]]:
    """Return per layer the least seconds and bytes that it and all layers further in add."""
    seconds, sizes = [0.0], [0.0]
    for layer in reversed(costs):
        alone = min(layer.forward, layer.direct_forward) + min(layer.backward, layer.direct_backward)
        seconds.append(seconds[-1] + alone + layer.between + layer.between_backward)
        # ∞: a variant that reads host memory is missing, so the weights take room from forward to backward.
        fixed = not twice and inf in (layer.direct_forward, layer.direct_backward)
        sizes.append(sizes[-1] + (layer.size if fixed else 0))
    return seconds[::-1], sizes[::-1]


def _grown(front: States, layer: Costs, twice: bool) -> tuple[States, NDArray[np.int64], NDArray[np.int64]]:
    """Return every state with the layer used in each of its treatments, the state that each comes from, and
    its treatment."""
    parts = [(_fetched(front, layer), Treatment.GFGB)]
    if layer.direct_forward < inf:
        if layer.direct_backward < inf:
            parts.append((_direct(front, layer), Treatment.DHA))
        # Needs the variant of forward alone: backward reads the device.
        parts.append((_returned(front, layer), Treatment.DFGB))
    if twice:
        parts.append((_twice(front, layer), Treatment.TWICE))
    rows = np.concatenate([part for part, _treatment in parts])
    rows[:, 0] += layer.between
    rows[:, 2] += layer.between_backward
    parents = np.tile(np.arange(len(front)), len(parts))
    return rows, parents, np.repeat([int(treatment) for _part, treatment in parts], len(front))


def _fetched(front: States, layer: Costs) -> States:
    rows = _fetched_first(front, layer)
    rows[:, 2] += layer.backward
    rows[:, 4] += layer.size
    return rows


def _direct(front: States, layer: Costs) -> States:
    rows = _direct_first(front, layer)
    rows[:, 2] += layer.direct_backward
    return rows


def _returned(front: States, layer: Costs) -> States:
    rows = _fetched_later(_direct_first(front, layer), layer)
    rows[:, 4] += layer.size
    return rows


def _twice(front: States, layer: Costs) -> States:
    return _fetched_later(_fetched_first(front, layer), layer)


def _fetched_first(front: States, layer: Costs) -> States:
    """Return the states after the layer's forward part, for which its weights are fetched."""
    rows = front.copy()
    rows[:, 1] += layer.fetch
    rows[:, 0] = np.maximum(rows[:, 0], rows[:, 1]) + layer.forward
    return rows


def _direct_first(front: States, layer: Costs) -> States:
    rows = front.copy()
    rows[:, 0] += layer.direct_forward
    return rows


def _fetched_later(front: States, layer: Costs) -> States:
    """Return the states after the layer's backward part, for which its weights are fetched.

    Changes the rows.
    """
    front[:, 2] += layer.backward
    # From when the link is free for this layer: it brings the weights, then come this layer's backward and
    # all outside it, or further fetches.
    front[:, 3] = layer.fetch + np.maximum(front[:, 2], front[:, 3])
    return front


def _undominated(states: States) -> NDArray[np.int64]:
    """Return the rows that no other row dominates, as good in everything; of equal rows the first."""
    order = np.lexsort(states.T[::-1])
    kept: list[int] = []
    front = np.empty_like(states)
    for row in order.tolist():
        state = states[row]
        if not (front[: len(kept)] <= state).all(axis=1).any():
            front[len(kept)] = state
            kept.append(row)
    return np.array(kept, np.int64)
