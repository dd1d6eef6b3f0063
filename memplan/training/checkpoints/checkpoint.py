"""All that a training run resumes from, in a folder: `save` and `load`.

    FOLDER/00000003/model.safetensors       module.state_dict(), each tensor once
                    optimizer.safetensors   its states, as in optimizer.state_dict(): `0.exp_avg`, …
                    rest.pt                 groups, counts, random numbers, what the loop adds
                    digests.json            of each tensor, of rest.pt, and of the whole

Each tensor is read and written in the memory that holds it, host, disk or device: this takes no device
memory, and no more host memory than the largest tensor has. A save is a new folder, completely on the disk
before it gets its name; only then are the earlier ones removed. So a process that is killed at any moment
leaves a complete checkpoint, if there was one. A load reads and verifies everything before it replaces
anything; signals are deferred while it replaces.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ...graphs.errors import InputError, MemplanError, MismatchError
from ...graphs.files.documents import regular_size
from ...guards.holders import Holders
from ...model.attached import attached_places, read_attached
from ...torch_support.interrupts import deferred_signals
from ...torch_support.torch_trees import tree_map_only
from ...torch_support.unsupported import warn_user
from .digests import FORMAT, Digests, read_digests, write_digests
from .holding import Holding
from .optimizer_states import Optimizer, prepare_states, states_of
from .random_numbers import are_random_numbers, random_numbers, set_random_numbers
from .tensor_file import (
    OTHER,
    file_digest,
    has_file_digest,
    in_order,
    open_tensors,
    sync,
    verify_tensors,
    write_tensors,
)

MODEL, OPTIMIZER, REST = "model.safetensors", "optimizer.safetensors", "rest.pt"
ALONE = Holding()
_NEW = ".new-"
_NUMBER = re.compile("[0-9]{8,18}")
_HALF = "module and optimizer have values of before and after: load a checkpoint before you go on"
_half_loaded = WeakSet[nn.Module]()


def save(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    holding: Holding = ALONE,
) -> None:
    """Write a checkpoint that replaces the one in the folder. One process at a time may save in a folder.

    extra: numbers, text, tensors and containers of these, or objects with a `state_dict()`, like a learning
        rate schedule. Of ranks that save together, those of rank 0 are saved.
    Raises MemplanError for what can't be saved and for a full disk; the earlier checkpoint is still there.
    """
    content = holding.together(partial(_content, module, optimizer, extra or {}, holding))
    holding.check_tensors(content.tensors | content.states)
    random = holding.random_numbers()
    content.rest.update(random=random[0], **({"ranks": random} if holding.size > 1 else {}))
    holding.together(partial(_write, Path(folder), content, holding))


def load(
    folder: str | Path,
    module: nn.Module,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    holding: Holding = ALONE,
) -> dict[str, Any]:
    """Set module, optimizer and random numbers to what they were when the folder's checkpoint was saved.

    extra: objects by name, whose state is restored by their `load_state_dict`.
    Returns the rest of what was saved as `extra`.
    Raises InputError if there is no complete checkpoint, MismatchError if it is that of another model or
    another optimizer. Nothing has changed then, nor if Ctrl-C ends the load. Raises MemplanError if the
    values can't be replaced, as when a disk fails: until a later load succeeds, the module's steps and saves
    are refused.
    """
    parts = {name: part for name, part in (extra or {}).items() if hasattr(part, "load_state_dict")}
    prepare = partial(_prepared, Path(folder), module, optimizer, parts, holding)
    place, saved, replace_values = holding.together(prepare)
    holding.check_equal("the checkpoint that they load", place.name)
    found: dict[str, Any] = saved.rest["extra"]
    begun: list[bool] = []

    def load_parts() -> None:
        for name, part in parts.items():
            before[name] = tree_map_only(Tensor, _copied, part.state_dict())
            _load_part(place, name, part, found[name])

    def replace() -> None:
        with deferred_signals():
            begun.append(True)
            _half_loaded.add(module)
            replace_values()
            _half_loaded.discard(module)

    before, numbers = dict[str, Any](), random_numbers()
    try:
        # The parts come first: that is code of others, which may fail, and can be taken back.
        holding.together(load_parts)
        holding.together(replace)
    except BaseException as error:
        if not begun:
            with deferred_signals():
                _put_back(parts, before, numbers)
        elif module in _half_loaded or holding.size > 1:  # another rank may have the values of before
            _half_loaded.add(module)
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise MemplanError(f"{place}: replacing the values has failed: {what}; {_HALF}") from error
        raise
    if saved.old and not holding.rank:
        warn_user(f"{place} is of an earlier memplan, without digests: damage in it would not be seen")
    return {name: value for name, value in found.items() if name not in parts}


def check_loaded(module: nn.Module) -> None:
    """Raise MemplanError if a load has failed while it replaced the module's values."""
    if module in _half_loaded:
        raise MemplanError(f"the last load of a checkpoint has failed halfway; {_HALF}")


def is_there(folder: str | Path) -> bool:
    """Tell whether the folder has a checkpoint."""
    return bool(_numbered(Path(folder)))


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────


class _Content(NamedTuple):
    """The content of a checkpoint: the module's tensors, each once, those of the optimizer, and the rest."""

    tensors: dict[str, Tensor]
    states: dict[str, Tensor]
    rest: dict[str, Any]


def _content(
    module: nn.Module, optimizer: Optimizer | None, extra: Mapping[str, Any], holding: Holding
) -> _Content:
    check_loaded(module)
    tensors, others = _model(module)
    states, rows = states_of(optimizer)
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    rest: dict[str, Any] = {
        "format": FORMAT,
        "tied": {name: same for name, same in tied.items() if name != same},
        "others": others,
        "holders": _holders(module),
        "optimizer": rows,
        "extra": {name: _state(part) for name, part in extra.items()},
    }
    holding.check_extra(rest["extra"])
    return _Content({name: tensors[name] for name in first.values()}, states, rest)


def _write(folder: Path, content: _Content, holding: Holding) -> None:
    tensors = [each for part in (content.tensors, content.states) for each in in_order(part).values()]
    if holding.rank:
        holding.give(tensors)
        return
    new = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{_NEW}*"):
            shutil.rmtree(old, ignore_errors=True)
        new = folder / f"{_NEW}{token_hex(8)}"
        new.mkdir()
        with holding.reading(tensors):
            digests = {
                MODEL: write_tensors(new / MODEL, content.tensors, holding.read),
                OPTIMIZER: write_tensors(new / OPTIMIZER, content.states, holding.read),
                REST: {"": _write_rest(new / REST, content.rest)},
            }
        write_digests(new, digests)
        before = _numbered(folder)
        # Entries reach the disk before the name does: a crash in between leaves the earlier checkpoint.
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


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────


def _prepared(
    folder: Path,
    module: nn.Module,
    optimizer: Optimizer | None,
    parts: Mapping[str, Any],
    holding: Holding,
) -> tuple[Path, _Saved, Callable[[], None]]:
    """Read and verify the checkpoint; return its place, itself, and the function that sets the values.

    Nothing has changed until that is called.
    """
    place = _latest(folder)
    saved = _read(place, holding)
    tensors, _others = _model(module)
    _check_tensors(place, tensors, saved.values)
    _check_holders(place, module, saved.rest.get("holders", {}))
    replace_states = prepare_states(place, optimizer, saved.rest["optimizer"], saved.states, holding)
    if missing := [name for name in parts if name not in saved.rest["extra"]]:
        raise MismatchError(f"{place}: nothing was saved as extra {missing[0]!r}")
    tied: dict[str, str] = saved.rest["tied"]
    for name in tied.keys() & tensors.keys():
        if tensors[name] is tensors.get(tied[name]):
            del tensors[name]
    # Ranks that were not there when it was saved keep their own numbers: they draw others than the first.
    random = (saved.rest.get("ranks") or [saved.rest["random"]])[holding.rank :][:1]

    def replace() -> None:
        if saved.rest["others"]:
            module.load_state_dict(saved.rest["others"], strict=False)
        for name, tensor in tensors.items():
            holding.replace(tensor, saved.values[name])
        replace_states()
        for numbers in random:
            set_random_numbers(numbers)

    return place, saved, replace


# ── the module ──────────────────────────────────────────────────────────────────────────────────────


def _model(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the entries of `state_dict`: parameters, buffers and attached tensors themselves, then other
    values.

    An attached tensor that is no entry itself has its own name. What a module with such tensors makes only to
    save it (bitsandbytes' packed numbers) follows from them and from what `_check_holders` compares.
    """
    places = attached_places(module)
    attached = read_attached(places)
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers(), *attached.values())}
    holders = {id(place.module) for place in places.values()}
    made_by = tuple(f"{path}.".lstrip(".") for path, part in module.named_modules() if id(part) in holders)
    found = module.state_dict(keep_vars=True)
    others = {name: other for name, other in found.items() if not isinstance(other, Tensor)}
    tensors = {name: found[name] for name in found.keys() - others.keys()}
    for name in sorted(name for name, tensor in tensors.items() if id(tensor) not in own):
        if not name.startswith(made_by):
            raise InputError(
                f"{name} in state_dict() is no parameter or buffer of the module: save it by hand"
            )
        del tensors[name]
    there = set(map(id, tensors.values()))
    tensors |= {name: tensor for name, tensor in attached.items() if id(tensor) not in there}
    return {name: tensors[name] for name in (*found, *attached) if name in tensors}, others


def _check_holders(place: Path, module: nn.Module, saved: Mapping[str, str]) -> None:
    """Raise MismatchError if quantised weights are of another kind, or in blocks of another size."""
    own = _holders(module)
    if own != saved:
        name = min(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
        raise MismatchError(f"{place}: {name} has {saved.get(name)}, and in the module {own.get(name)}")


def _holders(module: nn.Module) -> dict[str, str]:
    return {name: str(row) for name, row in Holders(attached_places(module)).plan.items()}


def _check_tensors(place: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    if other := sorted(tensors.keys() ^ values.keys()):
        where = "the checkpoint" if other[0] in tensors else "the module"
        raise MismatchError(f"{place}: {other[0]} is not in {where}")
    for name, tensor in tensors.items():
        saved = values[name]
        if tuple(tensor.shape) != tuple(saved.shape) or tensor.dtype != saved.dtype:
            forms = (f"{tuple(each.shape)} of {each.dtype}" for each in (saved, tensor))
            raise MismatchError(f"{place}: {name} is saved as {' and the module has '.join(forms)}")


# ── parts of the loop ───────────────────────────────────────────────────────────────────────────────


def _load_part(place: Path, name: str, part: Any, state: Any) -> None:
    try:
        part.load_state_dict(state)
    except MemplanError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise MismatchError(f"{place}: extra {name!r} does not take its state: {what}") from error


def _put_back(parts: Mapping[str, Any], states: Mapping[str, Any], numbers: dict[str, Any]) -> None:
    for name, state in states.items():
        parts[name].load_state_dict(state)
    set_random_numbers(numbers)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


# ── the rest, and the folder ────────────────────────────────────────────────────────────────────────


def _state(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _write_rest(path: Path, rest: dict[str, Any]) -> str:
    """Write rest.pt and return its digest. Raises InputError if it could not be loaded afterwards."""
    try:
        with path.open("wb") as file:
            torch.save(rest, file)
            sync(file)
        torch.load(path, weights_only=True)
        return file_digest(path)
    except OSError:
        raise
    except Exception as error:
        what = str(error).partition("\n")[0]
        raise InputError(
            f"extra can't be saved: numbers, text, tensors and containers can: {what}"
        ) from error


class _Saved(NamedTuple):
    """A checkpoint that was read.

    values, states: tensors of the module and of the optimizer, by name, mapped from the files.
    rest: all else.
    old: whether it has no digests.
    """

    values: dict[str, Tensor]
    states: dict[str, Tensor]
    rest: dict[str, Any]
    old: bool


def _read(place: Path, holding: Holding) -> _Saved:
    """Read a checkpoint, and verify this rank's part of it. Raises InputError, one line."""
    digests = read_digests(place)
    rest = _read_rest(place / REST, digests)
    values, states = open_tensors(place / MODEL), open_tensors(place / OPTIMIZER)
    if digests is not None:
        for name in (MODEL, OPTIMIZER):
            verify_tensors(place / name, digests[name], (holding.rank, holding.size))
    if lacking := [name for name in rest["tied"].values() if name not in values]:
        raise InputError(f"{place / REST}: a weight is tied to {lacking[0]!r}, which is not in {MODEL}")
    values |= {name: values[same] for name, same in rest["tied"].items()}
    return _Saved(values, states, rest, old=digests is None)


def _read_rest(path: Path, digests: Digests | None) -> dict[str, Any]:
    regular_size(path)
    try:
        if digests is not None and not has_file_digest(path, digests[REST][""]):
            raise InputError(f"{path}: it {OTHER}")
        rest: Any = torch.load(path, weights_only=True, map_location="cpu")
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: can't be read: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(rest, dict):
        raise InputError(f"{path}: a {type(rest).__name__} is not what a checkpoint has there")
    if wrong := [name for name, fits in _REST.items() if not fits(rest.get(name))]:
        raise InputError(f"{path}: its {wrong[0]!r} is not what a checkpoint has there")
    if digests is None and "format" in rest:
        raise InputError(f"{path.parent}: digests.json is gone: put it back from a copy of the folder")
    return rest


def _are_names(names: Any) -> bool:
    return isinstance(names, dict) and all(isinstance(each, str) for row in names.items() for each in row)


_REST: dict[str, Callable[[Any], bool]] = {
    "tied": _are_names,
    "others": lambda others: isinstance(others, dict),
    "optimizer": lambda rows: rows is None or isinstance(rows, dict),
    "random": are_random_numbers,
    "ranks": lambda rows: rows is None or (isinstance(rows, list) and all(map(are_random_numbers, rows))),
    "extra": lambda extra: isinstance(extra, dict),
}


def _numbered(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    named = {path.name: path for path in folder.iterdir()}
    return {int(name): path for name, path in named.items() if _NUMBER.fullmatch(name) and path.is_dir()}


def _latest(folder: Path) -> Path:
    found = _numbered(folder)
    if not found:
        raise InputError(f"{folder}: there is no checkpoint")
    return found[max(found)]


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk, on POSIX; elsewhere a folder can't be opened."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
