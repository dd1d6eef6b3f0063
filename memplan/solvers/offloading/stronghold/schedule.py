"""The working window, once around the iteration, as runs and offload intervals.

    step      0   1   2 … n-1 │ n … 2n-3  2n-2  2n-1       window of m = 2
    runs      F0  F1  F2      │       B2    B1    B0
    window    01  12  23  …   │  …    21    10    10       while F0 runs, layer 2 is fetched; while B2 runs, 0

The first m layers stay from the end of the backward part into the next iteration and are updated on the
device, where all others' updates run on the CPU if they can; the last m stay from forward to backward.
Gradients that nothing updates from are results, and leave after the window. A weight that several layers
read (tied) is in the window with each of them.

If the disk holds what is out of the window (III-G), weights go there after forward and after their
update, and come to the host ahead of their fetch; from backward to the update they wait on the host. States
of updates on the CPU come from the disk for them and go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ..layers.offload_intervals import Positions, Uses, gradient_intervals, state_intervals
from ..layers.runs import LayerRuns
from ..layers.training import TrainingLayers
from ..layers.windows import entered


def window_residency(
    found: TrainingLayers, plan: LayerRuns, size: int, states: Memory = Memory.HOST
) -> Residency:
    """Return the working window's decisions as a residency.

    plan: all in variants on the device. size: layers in the window.
    states: where the others' weights and optimizer states are, host or disk.
    """
    plan = replace(plan, runs=_with_host_updates(found, plan.runs, size))
    uses = Uses(found.graph, plan)
    turn = _Turn(found, plan, size, uses.device)
    offloaded: dict[TensorUse, Memory] = {}
    back: dict[TensorUse, int] = {}
    for x, steps in turn.uses.items():
        # Around the end: the first use of the next iteration.
        around = [*steps, (steps[0][0], steps[0][1] + 2 * turn.layers)]
        for (position, step), (following, until) in pairwise(around):
            entered = turn.entered(x, step, until)
            if entered is not None:
                # Across the end it waits on the host for its update there, and only then goes to the disk.
                updates = [u for u in uses.host.get(x, ()) if until >= 2 * turn.layers and u > position]
                offloaded[x, position] = Memory.HOST if updates else states
                offloaded |= dict.fromkeys(((x, update) for update in updates), states)
                # One layer ahead: fetched in the step before it enters the window.
                back[x, following] = turn.first_run(entered - 1)
    results = (x for layer in found.layers[size:] if not layer.updates for x in layer.gradients)
    offloaded |= gradient_intervals(results, uses.device) | state_intervals(found, uses, states)
    return Residency(plan.runs, offloaded, {}, back)


def _with_host_updates(found: TrainingLayers, runs: Sequence[Run], size: int) -> list[Run]:
    host: dict[int, int] = {}
    for layer in found.layers[size:]:
        host.update(found.host_modes(layer.updates) or ())
    return [(operation, host.get(operation, mode)) for operation, mode in runs]


class _Turn:
    """The window over one iteration.

    uses: per weight, the position and the step of each run that uses it, in order; without its updates on the
    CPU, which leave no copy on the device. Step: i in the forward part of layer i, 2n - 1 - i from its
    backward part on.
    """

    def __init__(self, found: TrainingLayers, plan: LayerRuns, size: int, device: Positions) -> None:
        self.layers, self.size = len(found.layers), size
        self.uses: dict[int, list[tuple[int, int]]] = {}
        for x in (x for x in device if x in found.layer_of_weight):
            # The last layer's two parts are one section of the plan, and two steps here.
            steps = (plan.section(position) + (position >= plan.first_backward) for position in device[x])
            self.uses[x] = list(zip(device[x], steps, strict=True))
        last = 2 * self.layers - 1
        self._with = {x: {min(s, last - s) for _position, s in uses} for x, uses in self.uses.items()}
        self._starts = [*plan.starts[: self.layers], plan.first_backward, *plan.starts[self.layers : -1]]

    def first_run(self, step: int) -> int:
        """Return the position at which a step begins; a step without runs begins where the next one does."""
        return self._starts[step % (2 * self.layers)]

    def entered(self, weight: int, step: int, until: int) -> int | None:
        """Return the step from which the weight is in the window for its use at `until`.

        None: it never left.
        """
        return entered(self._with[weight], range(step, until), self.layers, self.size)
