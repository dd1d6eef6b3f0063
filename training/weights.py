"""Weights for a model on `meta`, read from safetensors files.

Its tensors become uninitialized (runtime/storage/lazy_init.py). They take no memory until an iteration or
other code reads them; then they go straight to the memory in which the plan keeps them. The parameters stay
the same objects, so an optimizer may have been made of them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..runtime.program.program import Value
from ..runtime.storage.lazy_init import filled_with, is_unmade, make_later, refill
from ..runtime.torch_internals import empty_for_nobody
from .tensor_file import open_tensors


def check_weights(module: nn.Module, weights: object) -> None:
    """Check that files are given exactly if tensors are on meta. Raises InputError, one line."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    on_meta = [name for name, tensor in tensors if tensor.is_meta]
    wanted = on_meta or any(is_unmade(tensor) for _name, tensor in tensors)
    if weights is None and on_meta:
        raise InputError(
            f"{on_meta[0]} is on meta, without values: give weights=, a safetensors file or a folder of them"
        )
    if weights is not None and not wanted:
        raise InputError("weights are for a module on meta; this one has its own: load them into it")
    if weights is not None and not isinstance(weights, str | Path):
        raise InputError(
            f"weights is a {type(weights).__name__}: give a safetensors file or a folder of them"
        )


def read_weights(module: nn.Module, weights: str | Path, device: torch.device) -> None:
    """Set all tensors on meta, or still uninitialized, to the files' values, by their names in `state_dict`.

    Each is read when it is first used, in the module's own dtype. Raises InputError for a tensor that no file
    has, or that has another shape.
    """
    values = _tensors(Path(weights))
    given: dict[int, Tensor] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if _is_wanted(tensor) and name in values:
            given.setdefault(id(tensor), values[name])
    for name, tensor in named:
        if not _is_wanted(tensor):
            continue
        if id(tensor) not in given:
            raise InputError(f"{weights}: no file has {name}, which is on meta")
        if given[id(tensor)].shape != tensor.shape:
            shapes = f"{list(given[id(tensor)].shape)}; the module's is {list(tensor.shape)}"
            raise InputError(f"{weights}: {name} has the shape {shapes}")
    for tensor in {id(tensor): tensor for _name, tensor in named if _is_wanted(tensor)}.values():
        _fill(tensor, given[id(tensor)], device)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the files' tensors by name, mapped: their bytes are read on access."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: there is no file of safetensors in it")
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = open_tensors(file)
        if twice := found.keys() & tensors.keys():
            raise InputError(f"{path}: two files have {min(twice)}")
        found |= tensors
    return found


def _is_wanted(tensor: Tensor) -> bool:
    return tensor.is_meta or is_unmade(tensor)


def _fill(tensor: Tensor, values: Tensor, device: torch.device) -> None:
    """Turn a tensor into an uninitialized one on the device, to be filled later; it stays the same object."""
    form = Value(-1, tuple(tensor.shape), tensor.stride(), 0, tensor.dtype, device)
    fill = partial(filled_with, values, form)
    if is_unmade(tensor):
        refill(tensor, fill)
        return
    empty = empty_for_nobody(form.dtype, device)
    trained = tensor.requires_grad
    torch.utils.swap_tensors(
        tensor, nn.Parameter(empty, trained) if isinstance(tensor, nn.Parameter) else empty
    )
    make_later(tensor, form, fill)
