"""A window of neighbouring layers that moves over the model, forward and back.

An iteration of n layers has 2n steps: step i is the forward part of layer i, step 2n - 1 - i its backward
part. The window begins with the step's own layer and has the layers of the next steps, without running over
the model's ends: the first layers stay from backward into the next iteration, the last from forward to
backward.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet


def window(step: int, layers: int, size: int) -> range:
    """Return the layers in a window of `size` at a step; steps count on into the next iteration."""
    # Two steps a layer, and an iteration follows the other.
    step %= 2 * layers
    # Backward the window extends downward from layer 2n − 1 − step; at both ends it stops.
    first = min(step, layers - size) if step < layers else max(2 * layers - step - size, 0)
    return range(first, first + size)


def entered(members: AbstractSet[int], steps: range, layers: int, size: int) -> int | None:
    """Return the step from which a tensor is in the window for its use at the end of `steps`.

    None: it has been in the window since its use at their start. members: the layers that use the tensor.
    """
    # From the use backwards: the last step without the tensor is just before it enters.
    for step in reversed(range(steps.start + 1, steps.stop + 1)):
        if members.isdisjoint(window(step, layers, size)):
            return step + 1
    return None
