"""Tensors in a file of `torch.save`, such as pytorch_model.bin, mapped: pages are loaded on access."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...graphs.errors import InputError
from ...graphs.files.documents import regular_size

_UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, pickle.UnpicklingError, MemoryError)


def open_saved(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Nothing in it is executed.

    Raises InputError, one line, if it is not a state_dict, or in the format from before PyTorch 1.6.
    """
    regular_size(path)
    if not _is_archive(path):
        raise InputError(
            f"{path}: it is no file of torch.save as PyTorch 1.6 and later write it; one of safetensors has "
            "a name in .safetensors"
        )
    try:
        found: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except _UNREADABLE as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: can't be read as a state_dict ({said})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: it has a {type(found).__name__}: save the model's state_dict()")
    for name, each in cast("dict[Any, Any]", found).items():
        if not isinstance(name, str) or not isinstance(each, Tensor):
            raise InputError(
                f"{path}: {name!r} in it is a {type(each).__name__}, not a tensor: save the model's "
                "state_dict() alone"
            )
    return cast("dict[str, Tensor]", found)


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # what it raises for some damage
        return False
