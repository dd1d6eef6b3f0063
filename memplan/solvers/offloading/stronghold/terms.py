"""STRONGHOLD's analytic model: the terms of P1, P2 and (3), and the working window that follows from them.

Sun et al., "STRONGHOLD: fast and affordable billion-scale deep learning model training" (SC22,
doi:10.1109/SC41404.2022.00076), III-D. While layer k runs, the window holds m layers from k on in the
direction of the pass, and the next one is fetched alongside them.

| paper                  | here                          | unit    |
|------------------------|-------------------------------|---------|
| m, n                   | size, len(layers)             | layers  |
| t_fp, t_bp             | forward, backward             | s       |
| t_c2g                  | fetch                         | s       |
| t_g2c (FP, BP)         | forward_return, backward_return | s     |
| t_opt_gpu, t_opt_cpu   | device_update, host_update    | s       |
| t_async                | call_seconds                  | s       |
| s_fp, s_bp             | weights, weights + gradients  | bytes   |
| S_avail                | room                          | bytes   |

Where we differ from the print (m layers 0 … m in P1, 0 … m-1 in P2): m layers in both, at every place of the
window. (1c) and (2c) both count the buffer of the layer that is fetched, and the states of the first m
layers, which are updated on the device. (2b) asks for the longer of fetching the next layer and returning
the last one. A layer's backward takes t_bp + 3 t_async. (3) gives layer k the time of the layers before it,
and is required of the one queue of updates too: each layer alone can be in time when the queue is late.
O(n m) for each term. A larger window needs more memory, so the largest that fits is found by bisection:
O(n²) for n layers and windows of few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


@dataclass(frozen=True)
class LayerFigures:
    """The figures of one layer: seconds, then bytes.

    forward_return: of its weights, if they are updated on the device. backward_return: of its gradients, and
    of its weights if no CPU can update them. host_update: None if no CPU can; then its states never move.
    """

    forward: float
    backward: float
    fetch: float
    forward_return: float
    backward_return: float
    host_update: float | None
    device_update: float
    weights: int
    gradients: int
    states: int


def iteration_seconds(layers: Sequence[LayerFigures], size: int, call_seconds: float = 0.0) -> float:
    """Return the left side of (4): all computations, the calls, the updates on the device."""
    # 2 t_async in the forward pass, 3 in the backward pass.
    passes = sum(layer.forward + layer.backward + 5 * call_seconds for layer in layers)
    return passes + _device_updates(layers, size)


def _device_updates(layers: Sequence[LayerFigures], size: int) -> float:
    return sum(
        layer.device_update
        for number, layer in enumerate(layers)
        if number < size or layer.host_update is None
    )


def fits(layers: Sequence[LayerFigures], size: int, room: int) -> bool:
    """Tell whether (1c), (2c) hold at every place of the window, with the states of the first `size`
    layers."""
    # The first window is updated on the device, so its states stay there at every place.
    states = sum(layer.states for layer in layers[:size])
    for window, following in _places(layers, size):
        buffer = following.weights if following else 0
        if states + sum(layer.weights for layer in window) + buffer > room:
            return False
    for window, following in _places(layers[::-1], size):
        buffer = following.weights if following else 0
        if states + sum(layer.weights + layer.gradients for layer in window) + buffer > room:
            return False
    return True


def fetched_in_time(layers: Sequence[LayerFigures], size: int, call_seconds: float = 0.0) -> bool:
    """Tell whether (1b), (2b) hold: a window's computations last as long as what moves meanwhile, at every
    place."""
    for window, following in _places(layers, size):
        # (1b)
        busy = sum(layer.forward + 2 * call_seconds for layer in window)
        if following and busy < following.fetch:
            return False
    last: LayerFigures | None = None
    for window, following in _places(layers[::-1], size):
        # (2b); the print has t_fp here.
        busy = sum(layer.backward + 3 * call_seconds for layer in window)
        moved = max(following.fetch if following else 0.0, last.backward_return if last else 0.0)
        if busy < moved:
            return False
        # Passes run backward here: the first of the window is the next to leave.
        last = window[0]
    return True


def recycled_in_time(layers: Sequence[LayerFigures], size: int) -> bool:
    """Tell whether the soft (1d), (2d) hold: each window's computations last as long as its layers'
    transfers.

    A copy on the host stays fresh until the update: in the forward part only the first m layers return.
    """
    forward = [layer if n < size else replace(layer, forward_return=0.0) for n, layer in enumerate(layers)]
    return all(
        sum(layer.forward for layer in window) >= sum(layer.fetch + layer.forward_return for layer in window)
        for window, following in _places(forward, size)
        if following
    ) and all(
        sum(layer.backward for layer in window)
        >= sum(layer.fetch + layer.backward_return for layer in window)
        for window, following in _places(layers[::-1], size)
        if following
    )


def updated_in_time(layers: Sequence[LayerFigures], size: int) -> bool:
    """Tell whether (3) holds layer by layer: a CPU update is no longer than the passes of the layers
    before."""
    # The device's updates end the iteration, so they too are time that CPU updates have.
    available = _device_updates(layers, size)
    for number, layer in enumerate(layers):
        if number >= size and (layer.host_update or 0.0) > available:
            return False
        # After the test: (3) counts the layers before k; the print counts k too.
        available += layer.forward + layer.backward
    return True


def queue_in_time(layers: Sequence[LayerFigures], size: int) -> bool:
    """Tell whether (3) holds for one queue: from the last layer on, each update ends in time for its next
    fetch."""
    clock = finished = 0.0
    ends: list[float] = []
    for number in reversed(range(len(layers))):
        layer = layers[number]
        clock += layer.backward
        if number >= size:
            # One queue: an update starts once its gradient has arrived and the update before it has ended.
            finished = max(finished, clock + layer.backward_return) + (layer.host_update or 0.0)
            ends.append(finished)
    needed = clock + _device_updates(layers, size)
    # The first window stays on the device: the first fetch is for the layer after it.
    needed += sum(layer.forward for layer in layers[:size])
    # `ends` goes from the last layer down, the next forward from the first one up.
    for layer, end in zip(layers[size:], reversed(ends), strict=True):
        if end + layer.fetch > needed:
            return False
        needed += layer.forward
    return True


def _places(
    layers: Sequence[LayerFigures], size: int
) -> Iterator[tuple[Sequence[LayerFigures], LayerFigures | None]]:
    """Yield every place of the window in a pass, and the layer that is fetched there, if one is left."""
    # A window as large as the pass has one place, and fetches nothing there.
    for first in range(max(1, len(layers) - size + 1)):
        end = first + size
        yield layers[first:end], layers[end] if end < len(layers) else None


class Overlap(StrEnum):
    HIDDEN = "hidden"
    """P1, P2 and (3) hold: all transfers and updates are hidden by computations"""
    STALLS = "stalls"
    """the window fits, and something waits"""
    OUT_OF_MEMORY = "out of memory"
    """not even a window of one layer fits"""


@dataclass(frozen=True)
class Window:
    """The chosen window.

    size: layers, 0 if none fits. needed: the least that P1 and P2's hard terms (b) require, None if no size
    is enough. largest: that (c) allows. seconds: the paper's estimate if all is hidden.
    """

    size: int
    overlap: Overlap
    needed: int | None
    largest: int
    seconds: float


def working_window(layers: Sequence[LayerFigures], room: int, call_seconds: float = 0.0) -> Window:
    """Return the smallest window that hides everything; if none does, the largest that fits."""
    sizes = range(1, len(layers) + 1)
    # Memory grows with m. Index i is size i + 1: the first index that fails is the largest size that fits.
    largest = bisect_left(sizes, True, key=lambda m: not fits(layers, m, room))
    needed = next((m for m in sizes if fetched_in_time(layers, m, call_seconds)), None)
    size = next((m for m in sizes[:largest] if _all_hidden(layers, m, call_seconds)), None)
    overlap = Overlap.HIDDEN
    if size is None:
        size, overlap = largest, Overlap.STALLS if largest else Overlap.OUT_OF_MEMORY
    return Window(size, overlap, needed, largest, iteration_seconds(layers, size, call_seconds))


def _all_hidden(layers: Sequence[LayerFigures], size: int, call_seconds: float) -> bool:
    return (
        fetched_in_time(layers, size, call_seconds)
        and recycled_in_time(layers, size)
        and updated_in_time(layers, size)
        and queue_in_time(layers, size)
    )
