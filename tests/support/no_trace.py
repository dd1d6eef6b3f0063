"""A digest of all that planning may not change, and planners that compare it before and after.

It shares no code with what puts things back (guards/unchanged.py). Tensors whose values a schedule has
moved away are left out: to read them would bring them back.
"""

from __future__ import annotations

import random
from functools import wraps
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from memplan.devices.storage.offloaded import hold_of
from memplan.model.iteration import tensors_in
from memplan.torch_support.raw import is_one_of
from memplan.torch_support.reach import is_of_user_class
from memplan.training import optimize
from memplan.training.plans import plan
from memplan.training.plans.buckets import check_ignored

SIMPLE_TYPES = (bool, int, float, str, bytes, type(None))


def digest(iteration: Any) -> dict[str, Any]:
    """By what it is of: the bytes, form, memory and version counter of each tensor, plain values, and the
    states of random generators."""
    module, found = iteration.module, dict[str, Any]()
    for name, parameter in module.named_parameters():
        found[f"parameter {name}"] = of_tensor(parameter)
        found[f"gradient of {name}"] = None if parameter.grad is None else of_tensor(parameter.grad)
    for name, buffer in module.named_buffers():
        found[f"buffer {name}"] = of_tensor(buffer)
    parts = tensors_in(iteration.inputs)
    for name, tensor in tensors_in(iteration.inputs).items():
        read = of_tensor(tensor)
        found[f"input {name}"] = read if parts[name] is tensor else read[1:]  # a sparse one's are made anew
    for path, part in module.named_modules():
        found[f"mode of {path}"] = part.training
        for name, value in vars(part).items():
            if issubclass(type(value), torch.Tensor):
                found[f"attribute {path}.{name}"] = of_tensor(value)
            elif is_one_of(type(value), SIMPLE_TYPES):
                found[f"attribute {path}.{name}"] = value
    if iteration.updates is not None:
        found |= of_optimizer(iteration.updates.optimizer)
    found["torch's numbers"] = torch.get_rng_state().numpy().tobytes()
    found["Python's numbers"] = random.getstate()
    found["NumPy's numbers"] = repr(np.random.get_state())
    return found


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    found: dict[str, Any] = {"optimizer's attributes": sorted(vars(optimizer))}
    for number, (parameter, row) in enumerate(optimizer.state.items()):
        found[f"state {number}"] = (id(parameter), sorted(row))
        for name, value in row.items():
            found[f"state {number}.{name}"] = of_value(value)
    for number, group in enumerate(optimizer.param_groups):
        found[f"group {number}"] = {
            name: of_value(value) for name, value in group.items() if name != "params"
        }
    return found


def of_value(value: Any) -> Any:
    if issubclass(type(value), torch.Tensor):
        return of_tensor(value)
    return id(value) if is_of_user_class(type(value)) else repr(value)


def of_tensor(tensor: torch.Tensor) -> Any:
    if hold_of(tensor) is not None or hasattr(type(tensor), "__tensor_flatten__"):
        return id(tensor)
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    version = None if tensor.is_inference() else tensor._version
    there = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    bytes_ = there.view(torch.uint8).numpy().tobytes()
    form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)
    return id(tensor), form, tensor.data_ptr(), version, sha256(bytes_).hexdigest()


def is_made(before: Any, after: Any) -> bool:
    """Whether one of the two has no values yet: on meta, or still to be read from files."""
    return isinstance(before, int) != isinstance(after, int) and is_moved(before, after)


def is_moved(before: Any, after: Any) -> bool:
    """Whether a schedule with transfers has given a tensor other memory, or has it away now or before."""
    if isinstance(before, int) or isinstance(after, int):
        ids = [value if isinstance(value, int) else value[0] for value in (before, after)]
        return ids[0] == ids[1]
    both = all(isinstance(value, tuple) and len(value) == 5 for value in (before, after))
    return both and (*before[:2], *before[3:]) == (*after[:2], *after[3:])


def is_converted(before: Any, after: Any) -> bool:
    """Whether a frozen tensor has another dtype, as the module's first forward gives it."""
    if not (isinstance(before, tuple) and isinstance(after, tuple) and before[0] == after[0]):
        return False
    (shape, _strides, dtype, trained), now = before[1], after[1]
    return now[0] == shape and now[2] != dtype and not (trained or now[3])


def is_spread(before: Any, after: Any) -> bool:
    """Whether a DTensor is where a tensor was: whose values are compared where it is trained."""
    return isinstance(before, tuple) and isinstance(after, int)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if before.get(name) != after.get(name)]


def watch_planners() -> None:
    """From now on whatever plans raises AssertionError where it has changed something."""
    plan.Planner.__call__ = watched(plan.Planner.__call__, 1)
    optimize.check_ignored = watched(check_ignored, 0)  # pyright: ignore[reportPrivateImportUsage]


def watched(function: Any, position: int) -> Any:
    """position: of the iteration among its arguments."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        before = digest(arguments[position])
        options = arguments[0].options if isinstance(arguments[0], plan.Planner) else None
        # A step packs small weights into buckets, whose memory it gives back as separate memory.
        moves = options is not None and not (options.machine is None and options.bucket_size is None)
        spreads = getattr(options, "shard", None) is not None
        try:
            return function(*arguments, **keywords)
        finally:
            after = digest(arguments[position])
            may = is_spread if spreads else is_moved if moves else is_made
            changed = [
                name
                for name in differences(before, after)
                if name not in before
                or name not in after
                or not (may(before[name], after[name]) or is_converted(before[name], after[name]))
            ]
            assert not changed, f"planning has changed {', '.join(changed)}"

    return call
