"""Gradients of earlier iterations, in host memory while a planned iteration runs.

Where a loop calls `zero_grad` between the step and `backward`, or accumulates, `.grad` stays on the device
through the step, which does not read it. With a link to the host it can leave:

    .grad ──▶ host ├── planned forward and backward ──┤ zero_grad: it is dropped there
                                                        backward, clipping, any other use: it is back first

The plan gets these bytes. Each iteration then copies all gradients, twice where they are used once more.
So it is done where a plan within fewer bytes takes longer, or there is none.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor

from ...devices.device.choice import device_of
from ...devices.device.device import Device, StreamDevice
from ...devices.storage.arena import pinned_arena
from ...devices.storage.copies import offload, prefetch, raw, value
from ...devices.storage.host_buffers import Host, HostBuffer
from ...devices.storage.offloaded import hold_of, offload_value, restore
from ...graphs.machine import Machine
from ...model.iteration import Iteration
from ...planner.baseline import baseline
from ...planner.simulator.simulate import Figures, simulate
from ...program.program import Value
from ...torch_support.torch_fakes import no_torch_function
from ..options import Options
from .loop_memory import LoopMemory
from .plan_cache import Plan

ON_HOST = "old gradients on the host"
"""Entry of a plan's key in the cache."""

_ALIGNMENT = 64
"""Bytes between which gradients begin in host memory."""


class OldGradients:
    """The gradients of parameters, which leave the device before an iteration.

    staying: bytes of those that can't. why: the cause.
    """

    def __init__(self, parameters: Collection[Tensor], machine: Machine) -> None:
        """Take host memory for one gradient per parameter; pinned for a device that copies faster then."""
        self._device = device_of(next(iter(parameters)).device)
        self._parameters, self.staying, self.why = list(parameters), 0, ""
        sizes = [-(-each.nbytes // _ALIGNMENT) * _ALIGNMENT for each in self._parameters]
        self._places = [sum(sizes[:place]) for place in range(len(sizes))]
        pinned = isinstance(self._device, StreamDevice) and not machine.unpinned
        arena = pinned_arena(self._device, sum(sizes), machine.pinned) if pinned else None
        self._host = Host(arena=arena)

    def leave(self) -> None:
        """Copy the gradients to the host, and free their memory on the device."""
        self.staying = 0
        with no_torch_function():
            old = [(place, each.grad) for place, each in zip(self._places, self._parameters, strict=True)]
        for place, gradient in old:
            # Held already: the loop has not touched it since an earlier iteration.
            if gradient is None or hold_of(gradient) is not None:
                continue
            form = Value(
                storage=0,
                shape=tuple(gradient.shape),
                strides=gradient.stride(),
                offset=0,
                dtype=gradient.dtype,
                device=gradient.device,
            )
            try:
                if _is_alone(gradient, form, self._device):
                    self._offload(gradient, form, place)
                    continue
                self.why = "they lie in memory that other tensors have too"
            except MemoryError:
                self.why = "the host has no memory for them"
            self.staying += gradient.nbytes

    def _offload(self, gradient: Tensor, form: Value, place: int) -> None:
        size = form.end
        block = self._host.block(size, place, size)
        offload(self._device, gradient, block)
        offload_value(gradient, form, partial(_back, gradient, block, self._device), lambda: (block.bytes,))


def _back(gradient: Tensor, block: HostBuffer, device: Device) -> None:
    hold = hold_of(gradient)
    assert hold is not None
    room = device.room(hold.form.end)
    prefetch(device, block, room)
    restore(gradient, value(room, hold.form))


def _is_alone(gradient: Tensor, form: Value, device: Device) -> bool:
    """Tell whether the gradient fills a memory that is its own, and can be copied as bytes."""
    if type(gradient) is not Tensor or gradient.layout != torch.strided or gradient.requires_grad:
        return False
    dense = gradient.storage_offset() == 0 and form.end == gradient.nbytes
    # Allocators round up; a memory larger than that has other tensors too, such as flat gradients.
    return dense and raw(gradient).nbytes <= device.rounded(form.end)


def machine_for(iteration: Iteration, outside: LoopMemory, options: Options) -> Machine | None:
    """Return the machine if its host can have the gradients that a loop keeps, None if it can't."""
    machine, allowed = options.machine, options.allow
    if machine is None or not machine.links.reach_host or (allowed is not None and "offload" not in allowed):
        return None
    kept = outside.gradients > 0 and not outside.offloaded
    alone = iteration.purpose == "train" and iteration.updates is None and iteration.alone
    return machine if kept and alone else None


def may_pay(outside: LoopMemory, machine: Machine, plan: Plan | None) -> bool:
    """Tell whether a plan that has the gradients' bytes too could be faster, their copies included.

    plan: the one that leaves room for them, None if there is none.
    """
    return (
        # No plan beats the baseline's time: unless this bound is below, solving is in vain.
        plan is None or baseline(plan.graph).time + _copying(outside, machine) < _figures(plan, machine).time
    )


def pays(outside: LoopMemory, machine: Machine, plan: Plan | None, roomier: Plan) -> bool:
    """Tell whether `roomier`, which has the gradients' bytes too, is faster with their copies, and the host
    has room for them.

    plan: see `may_pay`.
    """
    figures, capacity = _figures(roomier, machine), machine.host_capacity
    if capacity is not None and figures.host_peak + outside.gradients > capacity:
        return False
    return plan is None or figures.time + _copying(outside, machine) < _figures(plan, machine).time


def _copying(outside: LoopMemory, machine: Machine) -> float:
    """Return the seconds of a copy of all old gradients to the host."""
    assert machine.links.d2h is not None
    # One way: `zero_grad` drops them on the host.
    return float(machine.links.d2h.seconds(float(outside.gradients)))


def _figures(plan: Plan, machine: Machine) -> Figures:
    machine = plan.graph.machine or machine
    return simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
