"""Converters of the options of `memplan.optimize`: each reads what was given, or raises UnfitError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from ..devices.measuring.kept_machine import AUTO, auto_machine
from ..devices.sharded.meshes import Mesh
from ..graphs.errors import InputError
from ..graphs.folders.cache import user_cache
from ..graphs.folders.private import PrivateFolder
from ..graphs.machine import Machine
from ..graphs.machines.presets import find_machine
from ..graphs.transformations.updates import When
from ..graphs.units import FEW_BYTES, bare_number, parse_bytes, parse_size, parse_span
from ..model.clipping import Clipping, parse_norm
from ..planner.budget import Budget, parse_budget
from ..program.outputs import Wanted
from ..solvers.allowed import parse_allow
from ..solvers.problem import Technique
from ..solvers.registry.catalogue import check_solver
from ..torch_support.unsupported import warn_user
from ..updates.several import SeveralOptimizers
from .option import UnfitError

MakesOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""Class of an optimizer, or another function that makes one of the parameters."""

States = int | Optimizer | MakesOptimizer | None
"""Answer to which memory the loop has outside of its plans: bytes, or the optimizer that makes the states."""

Gradients = Literal["kept", "freed"]

InPieces = bool | Literal["exact"]
"""Answer to which operations may run in pieces: none, all that split, those with eager PyTorch's bits."""


def read_budget(budget: int | str) -> Budget:
    # 0.6 could mean bytes or a share, so it is refused.
    if type(budget) is float and 0 < budget <= 1:
        raise UnfitError(
            f"write '{budget:.0%}' for a share of the baseline's peak, or bytes, like '{budget}GB'"
        )
    parsed = parse_budget(str(budget))
    number = bare_number(parsed.text)
    if number is not None and parsed.size is not None and parsed.size < FEW_BYTES:
        raise UnfitError(
            f"this is {parsed.size} bytes: write '{number:g}%' for a share of the baseline's peak, or a "
            f"unit, like '{number:g}GB'"
        )
    return parsed


def read_states(states: int | str | Optimizer | MakesOptimizer | None) -> States:
    if states is None or isinstance(states, Optimizer) or callable(states):
        return states
    if isinstance(states, bool) or not isinstance(states, int | str):  # pyright: ignore
        raise UnfitError("give bytes, like '2GB', or an optimizer or its class, like torch.optim.SGD")
    try:
        return parse_bytes(states)
    except InputError as error:
        raise UnfitError(f"{error}: give bytes, like '2GB', or an optimizer or its class") from None


def read_gradients(gradients: Gradients) -> Gradients:
    if gradients not in get_args(Gradients):
        raise UnfitError(f"give {' or '.join(map(repr, get_args(Gradients)))}")
    return gradients


def read_function(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if function is not None and not callable(function):
        raise UnfitError("give a function, like torch.nn.functional.mse_loss")
    return function


def read_anything(value: Any) -> Any:
    return value


def read_optimizer(optimizer: Any) -> Optimizer | None:
    if isinstance(optimizer, list | tuple):
        members: list[Any] = [*optimizer]
        if members and all(isinstance(each, Optimizer) for each in members):
            return SeveralOptimizers(members) if len(members) > 1 else members[0]
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise UnfitError("give one of torch.optim, or a list of some, made of the module's parameters")
    return optimizer


def read_update(update: When) -> When:
    if update not in get_args(When):
        raise UnfitError(f"give {' or '.join(map(repr, get_args(When)))}")
    return update


def read_clipping(norm: float | None) -> Clipping | None:
    return None if norm is None else Clipping(parse_norm(norm))


def read_wide(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype not in (None, torch.float32):
        raise UnfitError("give torch.float32, or None for the gradients' own")
    return dtype


def read_switch(value: bool) -> bool:
    if not isinstance(value, bool):  # pyright: ignore
        raise UnfitError("give True or False")
    return value


def read_pieces(split: InPieces) -> InPieces:
    if not isinstance(split, bool) and split != "exact":
        raise UnfitError("give True or False, or 'exact' for pieces with eager PyTorch's bits")
    return split


def read_three_way(value: bool | None) -> bool | None:
    return value if value is None else read_switch(value)


def read_decay(decay: float | None) -> float | None:
    if decay is not None and (type(decay) is not float or not 0 < decay < 1):
        raise UnfitError("give the share of the average that each update keeps, like 0.999")
    return decay


def read_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and dtype not in (torch.bfloat16, torch.float16):
        raise UnfitError("give torch.bfloat16 or torch.float16: PyTorch casts to these")
    return dtype


def read_scaler(scaler: torch.amp.GradScaler | None) -> torch.amp.GradScaler | None:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):  # pyright: ignore
        raise UnfitError("give a torch.amp.GradScaler")
    return scaler


def read_count(count: int) -> int:
    # Not isinstance: True is an int.
    if type(count) is not int or count < 1:
        raise UnfitError("give a whole number, 1 or more")
    return count


def read_size(size: int | str | None) -> int | None:
    try:
        return None if size is None else parse_size(size)
    except InputError as error:
        raise UnfitError(str(error)) from None


def read_machine(machine: Machine | str | Path | None) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if machine != AUTO:
        return find_machine(machine)
    found = auto_machine()
    if found.is_new:
        warn_user(found.line)
    # The budget is the limit: what is free at the moment would make each process another plan.
    return replace(found.machine, device_capacity=None)


def read_mesh(mesh: Mesh | None) -> Mesh | None:
    if mesh is None or mesh is False:
        return None
    if mesh is not True and not isinstance(mesh, DeviceMesh):  # pyright: ignore
        raise UnfitError(
            "give a torch.distributed.device_mesh.DeviceMesh, or True for all ranks of the default group"
        )
    return mesh


def read_solver(solver: str) -> str:
    check_solver(solver)
    return solver


def read_seconds(seconds: float | str | None) -> float | None:
    if isinstance(seconds, str):
        seconds = parse_span(seconds) or seconds
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0  # pyright: ignore
    ):
        raise UnfitError("give the solver's seconds, above 0, or a time like '5m'")
    return seconds


def read_gap(gap: float | str | None) -> float | str | None:
    return gap


def read_allow(allow: str | Sequence[str] | None) -> tuple[Technique, ...] | None:
    try:
        return parse_allow(allow)
    except InputError as error:
        raise UnfitError(str(error)) from None
    except TypeError:
        raise UnfitError("give names, like ('recompute', 'offload')") from None


def read_path(path: str | Path | None) -> Path | None:
    if path is not None and not isinstance(path, str | Path):  # pyright: ignore
        raise UnfitError("give a safetensors file or a folder of them")
    return None if path is None else Path(path)


def read_cache(cache: bool | str | Path) -> PrivateFolder | None:
    if isinstance(cache, bool):
        return user_cache() / "plans" if cache else None
    if not isinstance(cache, str | Path):  # pyright: ignore
        raise UnfitError("give a folder for plans, True or False")
    if Path(cache).exists() and not Path(cache).is_dir():
        raise UnfitError("plans are kept in a folder, and this is a file")
    return PrivateFolder(Path(cache))


def read_outputs(outputs: bool | str | Sequence[str]) -> Wanted:
    if isinstance(outputs, bool):
        return outputs
    names: tuple[Any, ...] = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    if not names or not all(isinstance(name, str) for name in names):
        raise UnfitError("give True, or names like 'logits' and 'hidden_states.0'")
    return names


def read_pad_values(pad_values: Mapping[Any, Any] | None) -> Mapping[str, Any] | None:
    return pad_values


def read_lengths(lengths: int | Sequence[int] | None) -> int | Sequence[int] | None:
    return lengths
