"""The arguments of `memplan.optimize`, looked at before anything is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ...graphs.errors import InputError
from ...graphs.folders.cache import cache_folder
from ...graphs.transformations.updates import When
from ...graphs.units import FEW_BYTES, bare_number
from ...planner.budget import Budget, parse_budget
from ..program.outputs import Wanted
from .batch_objects import object_parts
from .clipping import Clipping, given_norm


def check_module(module: object) -> None:
    """Raises InputError, one line, as all here do."""
    if not isinstance(module, nn.Module):
        raise InputError(f"the module is a {_kind(module)}, not a torch.nn.Module")


def given_inputs(inputs: Any) -> tuple[Any, ...] | dict[str, Any]:
    """One tensor is the only positional argument; a list is a tuple, a tokenizer's batch a dict."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    if isinstance(inputs, list):
        return tuple(inputs)
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if object_parts(inputs) is not None and not isinstance(inputs, tuple):
        return (inputs,)
    if not isinstance(inputs, tuple):
        raise InputError(
            f"inputs is a {_kind(inputs)}: give a tensor, a tuple of positional or a dict of named arguments"
        )
    return inputs


def given_budget(budget: Any) -> Budget:
    if isinstance(budget, float) and 0 < budget <= 1:
        raise InputError(
            f"budget={budget} is no number of bytes: a share of the plain peak is {budget:.0%}, in quotes; "
            f"bytes have a unit, like '{budget}GB'"
        )
    parsed = parse_budget(str(budget))
    number = bare_number(parsed.text)
    if number is not None and parsed.size is not None and parsed.size < FEW_BYTES:
        raise InputError(
            f"budget={budget!r} is {parsed.size} bytes: write '{number:g}%' for a share of the "
            f"plain peak, or a unit, like '{number:g}GB'"
        )
    return parsed


def check_updates(optimizer: object, update: str) -> None:
    if update not in get_args(When):
        raise InputError(f"update={update!r}: an update is {' or '.join(map(repr, get_args(When)))}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"the optimizer is a {_kind(optimizer)}, not one of torch.optim, made of the parameters"
        )


def check_accumulate(accumulate: object, *, updates: bool, scaled: bool) -> None:
    """updates: there is an optimizer. scaled: there is a scaler, whose scale the loop's division is in."""
    if type(accumulate) is not int or accumulate < 1:
        raise InputError(f"accumulate={accumulate!r}: it is the number of batches of an update, 1 or more")
    if accumulate > 1 and not (updates or scaled):
        raise InputError(
            "accumulate goes with optimizer=: without updates in the step the loop around it accumulates, "
            "with (loss / N).backward()"
        )


def check_scaled(scaler: torch.amp.GradScaler | None, accumulate: int, *, planned: bool) -> None:
    """planned: updates are."""
    if scaler is not None and accumulate > 1 and planned:
        raise InputError(
            "scaler and accumulate are not planned together: leave optimizer= out, and let the loop "
            "accumulate, with accumulate=N and scaler.scale(loss / N).backward()"
        )


def given_clipping(clip_norm: object, *, updates: bool) -> Clipping | None:
    if clip_norm is None:
        return None
    if not updates:
        raise InputError(
            "clip_norm goes with optimizer=: without updates in the plan the loop around the step clips, "
            "with torch.nn.utils.clip_grad_norm_"
        )
    return Clipping(given_norm(clip_norm))


def given_scaler(scaler: object) -> torch.amp.GradScaler | None:
    """None for one that is not enabled: its methods do nothing."""
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise InputError(f"scaler is a {_kind(scaler)}: give a torch.amp.GradScaler")
    return scaler if scaler is not None and scaler.is_enabled() else None


def check_autocast(autocast: object, *, scaled: bool) -> None:
    """scaled: a scaler was given, enabled or not."""
    if autocast is None:
        return
    if not isinstance(autocast, torch.dtype):
        raise InputError(f"autocast={autocast!r}: give a type, like torch.bfloat16")
    if autocast == torch.float16 and not scaled:
        raise InputError(
            "autocast=torch.float16 needs a scaled loss: give scaler=torch.amp.GradScaler(device), or use "
            "torch.bfloat16"
        )
    if autocast not in (torch.bfloat16, torch.float16):
        raise InputError(f"autocast={autocast}: PyTorch casts to torch.bfloat16 or torch.float16")
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):  # without a name: GPUs
        raise InputError("autocast= is given, and optimize is called under torch.autocast: one of both")


def check_loss_function(loss_fn: object) -> None:
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(f"loss_fn is a {_kind(loss_fn)}: give a function, like torch.nn.functional.mse_loss")


def check_switches(**switches: object) -> None:
    """True or False; None where the caller's default is None."""
    for name, given in switches.items():
        if not isinstance(given, bool | None):
            raise InputError(f"{name}={given!r}: give True or False")


def check_time_limit(seconds: object) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise InputError(f"time_limit={seconds!r}: it is the solver's seconds, above 0")


def check_plans(plans: object) -> None:
    if type(plans) is not int or plans < 1:
        raise InputError(f"plans={plans!r}: it is the number of shapes that are planned, 1 or more")


def given_folder(keep: Any) -> Path | None:
    """Where plans are kept: True is the user's cache, which not everybody has."""
    if isinstance(keep, bool):
        cache = cache_folder() if keep else None
        return cache and cache / "plans"
    if not isinstance(keep, str | Path):
        raise InputError(f"keep is a {_kind(keep)}: give a folder for plans, True or False")
    if Path(keep).exists() and not Path(keep).is_dir():
        raise InputError(f"{keep}: plans are kept in a folder, this is none")
    return Path(keep)


def given_outputs(outputs: Any) -> Wanted:
    """One name is a tuple of one."""
    if isinstance(outputs, bool):
        return outputs
    several = isinstance(outputs, tuple | list)
    names: tuple[Any, ...] = tuple(outputs) if several else (outputs,)
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"outputs={outputs!r}: give True, or names like 'logits' and 'hidden_states.0'")
    return names


def _kind(thing: object) -> str:
    return f"class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
