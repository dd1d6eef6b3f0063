"""Iterations that leave no trace: what they change is put back."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ..calls.randomness import restore_generator, save_generator
from ..torch_internals import buffers_of
from .accumulated import accumulated, note_accumulated
from .iteration import Iteration, tensors_in


@contextmanager
def unchanged(iteration: Iteration, device: torch.device) -> Generator[None]:
    """Afterwards buffers, inputs, what updates change, and random generators are what they were.

    Where an iteration that moves tensors has failed before its end, those that it lost stay empty.
    """
    module = iteration.module
    devices = {torch.device("cpu"), device}
    states = {each: save_generator(each) for each in devices}
    places = [(part, name) for part in module.modules() for name in buffers_of(part)]
    buffers = [(part, name, buffers_of(part)[name]) for part, name in places]
    tensors = [*module.buffers(), *tensors_in(iteration.inputs).values()]
    clones = [(tensor, tensor.clone()) for tensor in tensors]
    weights = changing(iteration)
    known = copies(weights)
    sums = iteration.updates and accumulated(iteration.updates.optimizer)
    try:
        yield
    finally:
        _put_back(iteration, weights, known)
        if iteration.updates is not None:
            note_accumulated(iteration.updates.optimizer, sums)
        for part, name, buffer in buffers:
            buffers_of(part)[name] = buffer
        with torch.no_grad():
            for tensor, copy in clones:
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)
        for each, state in states.items():
            restore_generator(each, state)


def changing(iteration: Iteration) -> dict[str, Tensor]:
    """The weights and optimizer states that updates change, those that are there, by name."""
    if iteration.updates is None:
        return {}
    optimizer = iteration.updates.optimizer
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    found: dict[str, Tensor] = {}
    for name, parameter in iteration.module.named_parameters():
        if parameter in updated:
            found[name] = parameter
            row = optimizer.state.get(parameter, {})
            found |= {f"{name}.{state}": t for state, t in row.items() if isinstance(t, Tensor)}
    return found


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In host memory, where there is most room."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _put_back(iteration: Iteration, tensors: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
    """The weights and states as they were; states that were not there go."""
    if iteration.updates is None:
        return
    kept = {id(tensor) for tensor in tensors.values()}
    for parameter, row in list(iteration.updates.optimizer.state.items()):
        for state in [state for state, there in row.items() if id(there) not in kept]:
            del row[state]
        if not row:
            del iteration.updates.optimizer.state[parameter]
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.shape == known[name].shape:
                tensor.copy_(known[name])
