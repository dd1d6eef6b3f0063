"""Module and inputs as `memplan.optimize` and model files give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...graphs.errors import InputError
from .batch_objects import object_parts


def validate_module(module: object) -> None:
    """Raise InputError, one line, for what is not a module."""
    if not isinstance(module, nn.Module):
        raise InputError(f"the module is a {_kind(module)}, not a torch.nn.Module")


def parse_inputs(inputs: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Return inputs as positional or named arguments. Raise InputError, one line, for anything else.

    One tensor is the only positional argument; a list is a tuple, a tokenizer's batch a dict.
    """
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


def _kind(thing: object) -> str:
    return f"class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
