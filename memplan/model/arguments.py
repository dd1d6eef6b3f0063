"""Module and inputs as `memplan.optimize` and model files give them, and how `forward` binds a call's
arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from torch import Tensor, nn

from ..graphs.errors import InputError, MismatchError
from ..torch_support.raw import is_a, name_of
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


def takes_argument(module: nn.Module, name: str) -> bool:
    """Tell whether forward has an argument of this name.

    A forward of `*args, **kwargs` alone, as compiled and PEFT's modules have, hands all to the one module
    that it wraps: then that one's forward counts.
    """
    parameters = _parameters(module)
    if parameters and all(each.kind in _ANY for each in parameters.values()):
        inner = list(module.children())
        return len(inner) == 1 and takes_argument(inner[0], name)
    return name in parameters and parameters[name].kind in _NAMED


def check_call(module: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise MismatchError, one line, if forward can't be called with these arguments.

    Code around forward may take others than it: only its own parameters count, not those that a decorator
    says it has.
    """
    try:
        signature = inspect.signature(module.forward, follow_wrapped=False)
    except (TypeError, ValueError):  # compiled code that tells nothing
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        name = type(module).__name__
        raise MismatchError(f"the batch can't be given to {name}.forward{signature}: {error}") from None


def by_name(module: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by the names that forward gives them, by their numbers if it gives none."""
    names = [name for name, each in _parameters(module).items() if each.kind in _POSITIONAL]
    # Those of `*args`.
    names += [str(i) for i in range(len(names), len(positional))]
    return {**dict(zip(names, positional, strict=False)), **named}


_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _parameters(module: nn.Module) -> Mapping[str, Parameter]:
    """Return forward's parameters, none if it tells nothing."""
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return {}


def _kind(thing: object) -> str:
    return f"class {name_of(thing)}" if is_a(thing, type) else name_of(type(thing))
