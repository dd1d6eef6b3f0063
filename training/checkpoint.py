"""All that a training run goes on from, in a folder: `save` and `load`.

    FOLDER/00000003/model.safetensors       module.state_dict(), each tensor once
                    optimizer.safetensors   its states, as in optimizer.state_dict(): `0.exp_avg`, …
                    rest.pt                 groups, counts, random numbers, what the loop adds

Each tensor is read and written where it lies, host, disk or device: this needs no room on the device, and no
more host memory than the largest tensor has. A save is a new folder, whole on the disk before it has its
name; then the ones before it go. So whoever is killed at any moment leaves a whole one, if there was one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError, MismatchError
from ..runtime.model.accumulated import SUM, accumulated, note_accumulated
from ..runtime.storage.home import replace_at_home
from .random_numbers import random_numbers, set_random_numbers
from .tensor_file import open_tensors, sync, write_tensors

MODEL, OPTIMIZER, REST = "model.safetensors", "optimizer.safetensors", "rest.pt"
_NEW = ".new-"

Optimizer = torch.optim.Optimizer


def save(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint in place of the one that is there. One process at a time may save in a folder.

    extra: numbers, text, tensors and containers of these, or what has a `state_dict()`, like a learning rate
    schedule. Raises MemplanError: what can't be saved, a disk that is full. The one before is still there.
    """
    folder = Path(folder)
    tensors, others = _model(module)
    states, rows = _states(optimizer)
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    rest = {
        "tied": {name: same for name, same in tied.items() if name != same},
        "others": others,
        "optimizer": rows,
        "random": random_numbers(),
        "extra": {name: _state(part) for name, part in (extra or {}).items()},
    }
    new = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{_NEW}*"):
            shutil.rmtree(old, ignore_errors=True)
        new = folder / f"{_NEW}{token_hex(8)}"
        new.mkdir()
        write_tensors(new / MODEL, {name: tensors[name] for name in first.values()})
        write_tensors(new / OPTIMIZER, states)
        _write_rest(new / REST, rest)
        before = _numbered(folder)
        _sync_folder(new)
        new.rename(folder / f"{1 + max(before, default=0):08}")
        _sync_folder(folder)
        for old in before.values():
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{folder}: can't save: {error.strerror or error}") from error
    finally:
        if new is not None and new.exists():
            shutil.rmtree(new, ignore_errors=True)


def load(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Module, optimizer and random numbers are as they were when the folder's checkpoint was saved.

    extra: by name what is given its own state back by `load_state_dict`. Returns the rest of what was saved
    as `extra`. Raises InputError: there is no checkpoint, or it is not whole; MismatchError: it is another
    model's, or another optimizer's. Nothing has changed then.
    """
    place = _latest(Path(folder))
    rest = _read_rest(place / REST)
    values = open_tensors(place / MODEL)
    values |= {name: values[same] for name, same in rest["tied"].items()}
    states = open_tensors(place / OPTIMIZER)
    tensors, _others = _model(module)
    _check_tensors(place, tensors, values)
    _check_optimizer(place, optimizer, rest["optimizer"])
    saved: dict[str, Any] = rest["extra"]
    parts = {name: part for name, part in (extra or {}).items() if hasattr(part, "load_state_dict")}
    if missing := [name for name in parts if name not in saved]:
        raise MismatchError(f"{place}: nothing was saved as extra {missing[0]!r}")
    for name in rest["tied"].keys() & tensors.keys():
        if tensors[name] is tensors[rest["tied"][name]]:
            del tensors[name]
    for name, tensor in tensors.items():
        replace_at_home(tensor, values[name])
    if rest["others"]:
        module.load_state_dict(rest["others"], strict=False)
    if optimizer is not None:
        _load_optimizer(optimizer, rest["optimizer"], states)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    set_random_numbers(rest["random"])
    return {name: value for name, value in saved.items() if name not in parts}


def is_there(folder: str | Path) -> bool:
    """Whether there is a checkpoint."""
    return bool(_numbered(Path(folder)))


# ── the module ──────────────────────────────────────────────────────────────────────────────────────


def _model(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `state_dict` names: parameters and buffers themselves, and what is no tensor."""
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    found = module.state_dict(keep_vars=True)
    tensors = {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    for name, tensor in tensors.items():
        if id(tensor) not in own:
            raise InputError(
                f"{name} in state_dict() is no parameter or buffer of the module: save it by hand"
            )
    return tensors, {name: other for name, other in found.items() if name not in tensors}


def _check_tensors(place: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    if other := sorted(tensors.keys() ^ values.keys()):
        where = "the checkpoint" if other[0] in tensors else "the module"
        raise MismatchError(f"{place}: {other[0]} is not in {where}")
    for name, tensor in tensors.items():
        saved = values[name]
        if tuple(tensor.shape) != tuple(saved.shape) or tensor.dtype != saved.dtype:
            forms = (f"{tuple(each.shape)} of {each.dtype}" for each in (saved, tensor))
            raise MismatchError(f"{place}: {name} is saved as {' and the module has '.join(forms)}")


# ── the optimizer ───────────────────────────────────────────────────────────────────────────────────


def _states(optimizer: Optimizer | None) -> tuple[dict[str, Tensor], Any]:
    """The tensors of an optimizer's states by name, and all else, with which of them lie on the CPU."""
    if optimizer is None:
        return {}, None
    packed, between = optimizer.state_dict(), accumulated(optimizer) is None
    tensors: dict[str, Tensor] = {}
    others: dict[int, dict[str, Any]] = {}
    for index, row in packed["state"].items():
        row = {name: value for name, value in row.items() if not (between and name == SUM)}
        tensors |= {f"{index}.{name}": value for name, value in row.items() if isinstance(value, Tensor)}
        others[index] = {name: value for name, value in row.items() if not isinstance(value, Tensor)}
    on_cpu = [name for name, tensor in tensors.items() if tensor.device.type == "cpu"]
    return tensors, {"groups": packed["param_groups"], "others": others, "on_cpu": on_cpu}


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_optimizer(place: Path, optimizer: Optimizer | None, rows: Any) -> None:
    if (optimizer is None) != (rows is None):
        there, here = ("no optimizer", "one") if rows is None else ("an optimizer", "none")
        raise MismatchError(f"{place} was saved with {there}, and is loaded with {here}")
    if optimizer is not None:
        saved = [len(group["params"]) for group in rows["groups"]]
        own = [len(group["params"]) for group in optimizer.param_groups]
        if saved != own:
            raise MismatchError(f"{place}: groups of {saved} parameters are saved, the optimizer has {own}")


def _load_optimizer(optimizer: Optimizer, rows: Any, states: Mapping[str, Tensor]) -> None:
    on_cpu = set(rows["on_cpu"])
    by_index: dict[int, dict[str, Tensor]] = {index: {} for index in rows["others"]}
    for name, value in states.items():
        index, _, state = name.partition(".")
        by_index[int(index)][state] = value
    for index, parameter in enumerate(_parameters(optimizer)):
        if index not in by_index:
            optimizer.state.pop(parameter, None)
            continue
        row = optimizer.state[parameter]
        for state in row.keys() - by_index[index].keys() - {SUM}:
            del row[state]
        row.update(rows["others"][index])
        for state, value in by_index[index].items():
            there = row.get(state)
            if isinstance(there, Tensor) and (there.shape, there.dtype) == (value.shape, value.dtype):
                replace_at_home(there, value)
            else:
                row[state] = _like(parameter, value, f"{index}.{state}" in on_cpu)
    note_accumulated(optimizer, None)
    for group, saved in zip(optimizer.param_groups, rows["groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})


def _like(parameter: Tensor, value: Tensor, on_cpu: bool) -> Tensor:
    """A state that is not there yet: where its parameter is, laid out as that."""
    device = torch.device("cpu") if on_cpu else parameter.device
    if value.shape == parameter.shape:
        made = torch.empty_strided(value.shape, parameter.stride(), dtype=value.dtype, device=device)
    else:
        made = torch.empty(value.shape, dtype=value.dtype, device=device)
    return made.copy_(value)


# ── the rest, and the folder ────────────────────────────────────────────────────────────────────────


def _state(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _write_rest(path: Path, rest: dict[str, Any]) -> None:
    """Raises InputError where it could not be loaded again."""
    try:
        with path.open("wb") as file:
            torch.save(rest, file)
            sync(file)
        torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        what = str(error).partition("\n")[0]
        raise InputError(
            f"extra can't be saved: numbers, text, tensors and containers can: {what}"
        ) from error


def _read_rest(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        raise InputError(f"{path}: can't be read: {str(error).partition(chr(10))[0]}") from error


def _numbered(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(path.name): path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()}


def _latest(folder: Path) -> Path:
    found = _numbered(folder)
    if not found:
        raise InputError(f"{folder}: there is no checkpoint")
    return found[max(found)]


def _sync_folder(folder: Path) -> None:
    """The names in it are on the disk; elsewhere than on POSIX a folder can't be opened."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
