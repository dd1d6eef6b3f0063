"""Weights for a model on `meta`, read from files of safetensors or of torch.save.

Its tensors become uninitialized (devices/storage/lazy_init.py). They take no memory until an iteration or
other code reads them; then they go straight to the memory in which the plan keeps them. The parameters stay
the same objects, so an optimizer may have been made of them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...devices.storage.lazy_init import filled_with, is_unmade, make_later, refill
from ...graphs.errors import InputError
from ...program.program import Value
from ...torch_support.torch_modules import buffers_not_saved
from ...torch_support.torch_tensors import empty_for_nobody
from .saved_file import open_saved
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
    for tensor, values in find_values(module, weights):
        fill_later(tensor, values, device)


def find_values(module: nn.Module, weights: str | Path) -> list[tuple[Tensor, Tensor]]:
    """Return each of the module's tensors that needs values, with the files' values, mapped: they are read on
    access.

    Raises InputError for a tensor that no file has, or that has another shape.
    """
    values = _tensors(Path(weights))
    given: dict[int, Tensor] = {}
    # All names of tied weights: a file may have any one of them.
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if _is_wanted(tensor) and name in values:
            given.setdefault(id(tensor), values[name])
    for name, tensor in named:
        if not _is_wanted(tensor):
            continue
        if id(tensor) not in given:
            raise InputError(f"{weights}: no file has {name}, which is on meta{_way_out(module, name)}")
        if given[id(tensor)].shape != tensor.shape:
            shapes = f"{list(given[id(tensor)].shape)}; the module's is {list(tensor.shape)}"
            raise InputError(f"{weights}: {name} has the shape {shapes}")
    wanted = {id(tensor): tensor for _name, tensor in named if _is_wanted(tensor)}
    return [(tensor, given[number]) for number, tensor in wanted.items()]


def _way_out(module: nn.Module, name: str) -> str:
    """Return what to do about a buffer that files of `state_dict` never have, after a colon."""
    path, _dot, own = name.rpartition(".")
    if own not in buffers_not_saved(module.get_submodule(path)):
        return ""
    return f": it is a buffer that state_dict leaves out, so register it anew with values, in {path or 'it'}"


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the files' tensors by name, mapped: their bytes are read on access."""
    found: dict[str, Tensor] = {}
    for file in _files(path):
        tensors = open_tensors(file) if file.suffix == ".safetensors" else open_saved(file)
        if twice := found.keys() & tensors.keys():
            raise InputError(f"{path}: two files have {min(twice)}")
        found |= tensors
    return found


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, those of safetensors if there are any; or the file itself."""
    if not path.is_dir():
        return [path]
    # In this order: a folder of the Hub often has the same weights in two formats.
    for pattern in ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.pth"):
        if files := sorted(path.glob(pattern)):
            return files
    raise InputError(f"{path}: there is no file of safetensors in it, and no pytorch_model.bin, .pt or .pth")


def _is_wanted(tensor: Tensor) -> bool:
    return tensor.is_meta or is_unmade(tensor)


def fill_later(tensor: Tensor, values: Tensor, device: torch.device) -> None:
    """Turn a tensor into an uninitialized one on the device, to be filled later; it stays the same object."""
    form = Value(
        # Only the layout counts here: it is in no program.
        storage=-1,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        offset=0,
        dtype=tensor.dtype,
        device=device,
    )
    fill = partial(filled_with, values, form)
    # Uninitialized by an earlier call: only the source of its values changes.
    if is_unmade(tensor):
        refill(tensor, fill)
        return
    empty = empty_for_nobody(form.dtype, device)
    trained = tensor.requires_grad
    torch.utils.swap_tensors(
        tensor, nn.Parameter(empty, trained) if isinstance(tensor, nn.Parameter) else empty
    )
    make_later(tensor, form, fill)
