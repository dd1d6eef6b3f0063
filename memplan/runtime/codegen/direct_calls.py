"""Functions that reach an operator's kernel with less of Python on the way.

    torch.add(v1, v2)             PyTorch's own function, which reads its arguments in C
    aten.add.Tensor(v1, v2)       the operator that a trace has, called in Python: takes about twice as long

Whether a function calls the same operator with the same arguments is not taken from its name: both are called
on tensors without memory, and what reaches the dispatcher is compared. No kernel runs for that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...program.names import short_name
from ...program.program import Call, Program, Ref, Setting, Value
from ...torch_support.below_autograd import as_traced
from ...torch_support.torch_fakes import TorchDispatchMode, no_function_modes
from ...torch_support.torch_operators import OpOverload, functions_named, inner_function

Function = Callable[..., Any]

_META = torch.device("meta")
_found: dict[Hashable, Function | None] = {}
"""Function per operator and kinds of arguments; None if no function makes the same call."""


def direct_call(program: Program, call: Call) -> Call:
    """Return a call that computes the same by the fastest function; another target than an operator stays."""
    if not isinstance(call.target, OpOverload):
        return call
    # Tuples of numbers are constants of the code, lists are made anew by each run.
    arguments, keywords = _with_tuples(call.arguments), _with_tuples(call.keywords)
    key = call.target, _kinds(arguments, program.values), _kinds(keywords, program.values)
    if key not in _found:
        _found[key] = _find(program, call, (arguments, keywords))
    if (function := _found[key]) is None:
        return replace(call, target=inner_function(call.target))
    return replace(call, target=function, arguments=arguments, keywords=keywords)


def _find(program: Program, call: Call, given: tuple[Any, Any]) -> Function | None:
    """Return a function that calls the operator of `call` with its arguments if it is `given` them."""
    try:
        tensors: dict[int, Tensor] = {}
        wanted = _reached(program, call.target, _filled((call.arguments, call.keywords), program, tensors))
    except Exception:  # a tensor that can't be without memory, as a quantised one
        return None
    if not tensors:  # what makes tensors of nothing asks for PyTorch's defaults
        return None
    for function in functions_named(short_name(call.target)):
        try:
            if _alike(wanted, _reached(program, function, _filled(given, program, tensors))):
                return function
        except Exception:  # it takes other arguments
            continue
    return None


class _ReachedError(Exception):
    """Raised by the first call that reaches the dispatcher. call: operator, arguments, keywords."""

    def __init__(self, *call: Any) -> None:
        self.call = call


class _Stop(TorchDispatchMode):
    """Mode that lets no call pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _ReachedError(func, args, kwargs or {})


def _reached(program: Program, function: Function, given: tuple[Any, Any]) -> Any:
    """Return the operator that a function calls first, and with what; None if it calls none."""
    arguments, keywords = given
    try:
        with no_function_modes(), as_traced(program.device), _Stop():
            function(*arguments, **keywords)
    except _ReachedError as reached:
        return reached.call
    return None


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two nests are equal: the same tensors, and equal numbers of the same types."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))  # pyright: ignore
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)  # pyright: ignore
    if isinstance(one, Tensor) or type(one) is not type(other):
        return one is other
    return bool(one == other or (one != one and other != other))


def _filled(argument: Any, program: Program, tensors: dict[int, Tensor]) -> Any:
    """Return a nest of arguments with a tensor without memory for each value. tensors: those made so far."""
    if isinstance(argument, Ref):
        if argument.value not in tensors:
            value = program.values[argument.value]
            tensors[argument.value] = torch.empty_strided(
                value.shape, value.strides, dtype=value.dtype, device=_META
            )
        return tensors[argument.value]
    if isinstance(argument, Setting):
        return argument.example
    if isinstance(argument, Mapping):
        return {name: _filled(part, program, tensors) for name, part in argument.items()}  # pyright: ignore
    if isinstance(argument, tuple | list):
        return type(argument)(_filled(part, program, tensors) for part in argument)  # pyright: ignore
    return argument


def _with_tuples(argument: Any) -> Any:
    """Return a nest of arguments with tuples for lists of whole numbers."""
    if isinstance(argument, Mapping):
        return {name: _with_tuples(part) for name, part in argument.items()}  # pyright: ignore
    if isinstance(argument, tuple | list):
        if all(isinstance(part, int) for part in argument):  # pyright: ignore
            return tuple(argument)  # pyright: ignore
        return type(argument)(map(_with_tuples, argument))  # pyright: ignore
    return argument


def _kinds(argument: Any, values: Sequence[Value]) -> Hashable:
    """Return that on which it depends which operator a function calls: the types of arguments.

    A tensor without dimensions can stand for a number.
    """
    if isinstance(argument, Ref):
        value = values[argument.value]
        return value.dtype, not value.shape
    if isinstance(argument, Setting):
        return float
    if isinstance(argument, Mapping):
        return tuple((name, _kinds(part, values)) for name, part in argument.items())  # pyright: ignore
    if isinstance(argument, tuple | list):
        return type(argument), *(_kinds(part, values) for part in argument)  # pyright: ignore
    return type(argument)
