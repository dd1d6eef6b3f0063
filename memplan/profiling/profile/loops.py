"""Facts of an estimated program that training loops without a plan need: costs, states, tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from ...devices.device.device import StreamDevice
from ...graphs.graph import Phase
from ...graphs.machine import Updates
from ...graphs.machines.presets import Preset
from ...model.lora import DOWN
from ...program.program import Program
from ...updates.masters import MASTER
from ...updates.updates import updates_weights
from .estimate import Demand, pass_rate
from .roofline import Work
from .workspace import Workspace

BLOCK_BYTES = StreamDevice.block_bytes
"""Size of which a GPU's tensors are whole multiples."""
_ADAPTER = f".{DOWN}.weight"
_ADDING_PASSES = 3
"""Reads the sum and the gradient, writes the sum."""


def cost_of_adding(preset: Preset) -> Callable[[int], tuple[float, float | None]]:
    """Return a function of a gradient's bytes: the seconds of adding it to a sum on the device and on the
    host, None if the speed there is unknown.
    """

    def cost(size: int) -> tuple[float, float | None]:
        # An addition is one kernel, and goes at the rate of fused updates.
        demand = Demand(Work(0, 0, ""), Workspace(), _ADDING_PASSES, size, fused=True)
        found = demand.cost(preset.gpu, preset.machine.updates, Phase.BACKWARD)
        return found.seconds, found.host_seconds

    return cost


def adding_rate(updates: Updates) -> float | None:
    """Return how many bytes of gradients a device adds to sums per second; None if the speed is unknown."""
    passes = pass_rate(updates.device, updates.device_fused, fused=True)
    return None if passes is None else passes / _ADDING_PASSES


def state_elements(program: Program) -> dict[int, int]:
    """Return per storage of an optimizer state, but for masters, the elements of its weight."""
    values = program.values
    return {
        values[value].storage: prod(values[program.parameters[name]].shape)
        for (name, state), value in program.states.items()
        if state != MASTER
    }


def weights_in(program: Program, dtype: str) -> set[int]:
    """Return the storages of the weights of a dtype, by its name."""
    values = (program.values[value] for value in program.parameters.values())
    return {form.storage for form in values if form.dtype == getattr(torch, dtype)}


def adapted_layers(program: Program) -> list[str]:
    """Return the layers that have adapters (lora.py)."""
    return [name.removesuffix(_ADAPTER) for name in program.parameters if name.endswith(_ADAPTER)]


def trained_elements(program: Program) -> tuple[int, int]:
    """Return the elements of all weights that are trained, and of all weights."""
    values = program.values
    changed = {x for one in program.operations if updates_weights(one) for x in one.mutates}
    sizes = {
        name: prod(values[value].shape) * (2 if values[value].dtype == torch.uint8 else 1)  # 4 bits each
        for name, value in program.parameters.items()
    }
    trained = (
        size
        for name, size in sizes.items()
        # Without updates a trained weight has a gradient among the results, with them it is changed.
        if name in program.gradients or values[program.parameters[name]].storage in changed
    )
    return sum(trained), sum(sizes.values())


def tokens_per_sample(program: Program, batch: int) -> int | None:
    """Return the tokens of a sample: the second dimension of the first input of whole numbers that has two.

    None if the model takes no tokens.
    """
    for value in program.inputs.values():
        form = program.values[value]
        if form.dtype in (torch.int64, torch.int32) and len(form.shape) == 2 and form.shape[0] == batch:
            return int(form.shape[1])
    return None
