"""A call as text that is the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import torch

from ..torch_support.torch_fakes import FakeTensor
from .names import full_name
from .program import Call, Ref


def call_text(call: Call, value: Callable[[int], str]) -> str:
    """Write a call as text.

    value: returns what to write for a value among the arguments.
    """
    return f"{full_name(call.target)} {_text(call.arguments, value)} {_text(call.keywords, value)}"


def content(constant: torch.Tensor) -> str:
    """Return a digest of a tensor's bytes."""
    if isinstance(constant, FakeTensor):
        return "unknown"
    # As bytes: NumPy has no bfloat16. Flat: a tensor without dimensions has no view of another item size.
    data = constant.detach().cpu().contiguous().flatten().view(torch.uint8)
    return sha256(data.numpy().tobytes()).hexdigest()


def _text(argument: Any, value: Callable[[int], str]) -> str:
    """Write an argument like repr does, but the same in every process: the only objects in it are torch's
    own types.
    """
    if isinstance(argument, Ref):
        return f"%{value(argument.value)}"
    if isinstance(argument, Mapping):
        return f"{{{', '.join(f'{name!r}: {_text(part, value)}' for name, part in argument.items())}}}"
    if isinstance(argument, tuple | list):
        return f"[{', '.join(_text(part, value) for part in argument)}]"
    if isinstance(argument, torch.device):
        return argument.type  # without its index, which differs between ranks that run one program
    if isinstance(argument, torch.Generator):
        return "generator"  # which one, the fingerprint says by its path
    return repr(argument)
