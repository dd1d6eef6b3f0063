"""Functions whose calls are planned: a training step, or a loss, of modules and a batch.

    @memplan.optimize(budget="12GB")
    def loss(model, images, noise):
        return F.mse_loss(model(images + noise), noise) + 0.1 * model.encoder(images).square().mean()

    loss(model, images, noise).backward()

The modules are those among the arguments, those that an object among them holds (`self` of a method), and
those that the function reaches in its closure and its globals. All else that it is given is the batch.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial, update_wrapper
from threading import RLock
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..model.processes import Around
from ..torch_support.raw import is_a
from ..torch_support.reach import cell_contents, globals_in, parts_with_code, reachable
from .options import Options
from .plans.report import Report
from .plans.trace_watch import TraceWatch
from .step.step import Step

_READ_NAMES = {"locals", "vars", "dir", "eval", "exec"}
"""Functions of Python that read variables by their names."""

_SIMPLE = (Tensor, bool, int, float, complex, str, bytes, type(None), Mapping, tuple, list)


class PlannedFunction:
    """A function whose calls are iterations within a budget, as `optimize` returns it for a function.

    Returns what the function returns, of which the loss is planned: the result itself, its `loss`, or its
    first entry. Without gradients (under `torch.no_grad()`) the function itself runs, not planned.

    step: the step of the last planned call; None before the first.
    """

    def __init__(
        self, function: Callable[..., Any], options: Options, plan: Callable[[nn.Module, Any, Options], Step]
    ) -> None:
        """Set up a function that is planned at its first call.

        plan: plans a step.
        """
        self.step: Step | None = None
        # The call returns the function's whole result, so its tensors outlive the plan.
        options = options.replaced(return_outputs=options.return_outputs or True)
        self._function, self._options, self._plan = function, options, plan
        self._steps: list[tuple[_Call, Step]] = []
        self._watch = TraceWatch()
        self._signature = inspect.signature(function)
        self._unused = _unused(function)
        self._alone = RLock()
        update_wrapper(self, function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the function as a method of an instance."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._options.train and not torch.is_grad_enabled():
            return self._function(*arguments, **keywords)
        # One call at a time: `step.output` is of the last one.
        with self._alone:
            call, inputs = self._apart(self._signature.bind(*arguments, **keywords))
            self.step = self._step(call, inputs)
            result = self.step(inputs)
            return result if not self._options.train else _with_loss(self.step.output, result)

    def report(self) -> Report:
        """Return the figures of the last call's step. Raises InputError before the first call."""
        if self.step is None:
            raise InputError(f"{_name(self._function)} has no plan yet: it is planned when it is called")
        return self.step.report()

    def planned(self, inputs: Any) -> PlannedFunction:
        """Plan an example call, given as a tuple of positional or a dict of named arguments.

        Raises InputError for arguments that the function does not take.
        """
        named, positional = (inputs, ()) if isinstance(inputs, Mapping) else ({}, inputs)
        positional = positional if isinstance(positional, tuple | list) else (positional,)
        try:
            given = self._signature.bind(*positional, **named)
        except TypeError as error:
            raise InputError(
                f"inputs of {_name(self._function)}{self._signature}: {error}: give all that it takes, the "
                "module included, like (model, batch)"
            ) from None
        self.step = self._step(*self._apart(given))
        return self

    def _step(self, call: _Call, inputs: dict[str, Any]) -> Step:
        """Return the step for a call's modules, made if need be; as many are kept as `max_plans` says."""
        step = next((step for known, step in self._steps if known.is_same(call)), None)
        if step is not None:
            self._watch.note(None)
        else:
            if self._steps:
                # The first is of the call before: `_steps` is in order of use.
                self._watch.note(call.difference(self._steps[0][0]))
            step = self._plan(call.module(self._function, _name(self._function)), inputs, self._options)
        others = [(known, other) for known, other in self._steps if other is not step]
        self._steps = [(call, step), *others][: self._options.max_plans]
        return step

    def _apart(self, given: inspect.BoundArguments) -> tuple[_Call, dict[str, Any]]:
        """Return what a call's modules are, and the rest of its arguments, the batch."""
        kept, inputs = dict[str, Any](), dict[str, Any]()
        for name, value in given.arguments.items():
            if name in self._unused:
                # As an input, an index would give each batch a plan.
                kept[name] = None
            elif name == "self" or (not is_a(value, _SIMPLE) and any(True for _ in _modules(value))):
                kept[name] = value
            else:
                inputs[name] = value
        roots = (*kept.values(), self._function)
        # In the order in which they are reached: `is_same` compares it.
        reached = {id(module): module for root in roots for module in _modules(root)}
        held = {name: each for name, each in {**kept, **_named(self._function)}.items() if _may_hold(each)}
        return _Call(self._signature, kept, tuple(reached.values()), held), inputs


class _Call(NamedTuple):
    """The modules of a call, and what else is no part of its batch.

    kept: arguments that are or hold modules, and None for those that the function does not read, by name.
    reached: all modules that the call may use.
    held: objects that may hold constants, by name.
    """

    signature: inspect.Signature
    kept: dict[str, Any]
    reached: tuple[nn.Module, ...]
    held: dict[str, Any]

    def is_same(self, other: _Call) -> bool:
        """Tell whether a plan for one call is right for the other, whatever the batch.

        An attribute, a global or a variable of the closure may have another module or object by now.
        """
        # Both calls hold their objects, so no id is that of a freed one.
        mine, others = (
            [id(thing) for thing in (*call.kept.values(), *call.reached, *call.held.values())]
            for call in (self, other)
        )
        return mine == others and self.kept.keys() == other.kept.keys()

    def difference(self, other: _Call) -> str:
        """Return in words what is not the other call's. Call it if `is_same` is False."""
        for name, thing in self.held.items():
            if other.held.get(name) is not thing:
                return f"{name} is another {type(thing).__name__} object than in the call before"
        known = {id(module) for module in other.reached}
        module = next((each for each in self.reached if id(each) not in known), None)
        if module is None:
            return "the call reaches other modules, or in another order, than the one before"
        return f"the call reaches another {type(module).__name__} object than the one before"

    def module(self, function: Callable[..., Any], name: str) -> Around:
        """Return the function as a module. Raises InputError if it reaches none."""
        if not self.reached:
            raise InputError(f"{name} is given no module, and reaches none: give it the model as an argument")
        trained = (each for each in self.reached if any(p.requires_grad for p in each.parameters()))
        # A frozen teacher may come first; the step's parameters are the trained module's.
        main = next(trained, self.reached[0])
        inner = {id(part) for part in main.modules()}
        others = {f"other{i}": each for i, each in enumerate(self.reached) if id(each) not in inner}
        # None if it is reached through an object or the closure, which hold it already.
        place = next((name for name, value in self.kept.items() if value is main), None)

        def call(module: nn.Module, inputs: dict[str, Any]) -> Any:
            given = {**self.kept, **inputs} if place is None else {**self.kept, **inputs, place: module}
            ordered = {name: given[name] for name in self.signature.parameters if name in given}
            bound = inspect.BoundArguments(self.signature, cast("Any", ordered))
            return function(*bound.args, **bound.kwargs)

        call.__name__ = name
        return Around(main, call, others, function, objects=self.held)


def _modules(root: Any) -> Iterator[nn.Module]:
    """Yield the modules that an object is, holds or, if it is a function, reaches; not the parts of these."""

    def parts(thing: Any) -> Any:
        # The modules of a step or a planned function are another plan's.
        ends = is_a(thing, nn.Module | Tensor | Step | PlannedFunction)
        return () if ends else parts_with_code(thing)

    return (thing for _path, thing in reachable(root, parts) if is_a(thing, nn.Module))


def _named(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the function names in its closure and its globals."""
    inner: Any = _innermost(function)
    if not isinstance(inner, FunctionType):
        return {}
    cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
    closure = {name: held[0] for name, cell in cells if (held := cell_contents(cell))}
    read = {name: inner.__globals__[name] for name in globals_in(inner.__code__) if name in inner.__globals__}
    return {**read, **closure}


def _may_hold(thing: Any) -> bool:
    """Tell whether an object may hold constants of an iteration.

    Numbers and texts are compared at each call, as all that the code reads. A tensor is none: a closure or a
    global may have another one at the next call.
    """
    code = nn.Module | type | ModuleType | FunctionType | BuiltinFunctionType
    return not is_a(thing, code | Tensor | bool | int | float | complex | str | bytes | None)


def _name(function: Any) -> str:
    return getattr(_innermost(function), "__name__", type(function).__name__)


def _innermost(function: Any) -> Any:
    """Return the function that the user wrote, in a method, a partial or decorators."""
    if isinstance(function, MethodType):
        return _innermost(function.__func__)
    return _innermost(function.func) if isinstance(function, partial) else inspect.unwrap(function)


def _unused(function: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters that the function's code never reads, such as the index of a batch.

    Code around it (a decorator), and code that reads names by itself, might: then all count as read.
    """
    inner: Any = _innermost(function)
    if not isinstance(inner, FunctionType) or hasattr(function, "__wrapped__"):
        return frozenset()
    code, read = inner.__code__, set[str]()
    if not _READ_NAMES.isdisjoint(code.co_names):
        return frozenset()
    for each in dis.get_instructions(code):
        # Not startswith: 3.13 joins `x = …` and a read of `weight` to STORE_FAST_LOAD_FAST (x, weight).
        if "LOAD_" in each.opname and isinstance(each.argval, str | tuple):
            read.update(each.argval if isinstance(each.argval, tuple) else (each.argval,))
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # Cells are read by inner functions, whose instructions are not among these.
    return frozenset(known) - read - frozenset(code.co_cellvars)


def _with_loss(output: Any, loss: Tensor) -> Any:
    """Return a function's result with the planned loss instead of its own."""
    if output is None or isinstance(output, Tensor):
        return loss
    if isinstance(output, tuple | list):
        entries = [loss, *cast("list[Any]", output)[1:]]
        # A named tuple takes its fields one by one.
        return type(output)(*entries) if hasattr(output, "_fields") else type(output)(entries)
    # Shallow: `step.output` keeps its own loss.
    result = copy(output)
    if isinstance(result, dict):
        result["loss"] = loss
    else:
        result.loss = loss
    return result
