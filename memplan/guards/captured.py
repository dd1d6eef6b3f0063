"""Tensors that a traced iteration uses without being given them: a closure's, a global's, an attribute's.

The trace would hold them as they were: labels in a closure would be the first batch's for ever. One that an
attribute of the module holds (a table of masks, say), or the library whose code uses it (a solver's
coefficients), is taken, and every step looks whether it is still there, unchanged. Any other is refused. What
the code makes itself each time (`torch.tensor(3.0)`, an index from a list) is part of the code, like its
numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs.errors import MismatchError
from ..model.iteration import Iteration, others_in
from ..torch_support.hints import SPARSE
from ..torch_support.raw import is_a
from ..torch_support.reach import Parts, Path, follow, parts_of, parts_with_code, reachable, spelled
from ..torch_support.torch_fakes import DispatchMode, FakeTensor, device_of_fake
from ..torch_support.torch_operators import asks_for_device, schema_of
from ..torch_support.torch_tensors import WeakIdKeyDictionary, version_of, wraps_others
from ..torch_support.torch_trees import tensors_among
from ..torch_support.unsupported import (
    TraceError,
    is_value_dependent,
    library_of,
    users_line,
)
from .reads.contents import is_plain

_LIBRARY = "libraries"
"""The root of the paths to a library's constants."""

aten: Any = torch.ops.aten
_MAKES_IT_HERE = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
"""Operators that `torch.tensor` and the like call on a tensor that they have just made."""


class Captured(DispatchMode):
    """Mode that notes the real tensors among calls' arguments, and the line that used each first.

    Those that a tensor wraps pass through it themselves.
    """

    def __init__(self, given: Iterable[Tensor], calls: Iterator[int], iteration: Iteration) -> None:
        """Start with no captured tensors.

        given: parameters, buffers and inputs.
        calls: counter that advances by one for each call.
        """
        super().__init__()
        self._iteration = iteration
        self._calls = calls
        self._given = {id(tensor) for tensor in given}
        self._found: dict[int, tuple[Tensor, str]] = {}
        self._follows: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_for_device(func, args):
            return device_of_fake(args[0])
        kwargs = kwargs or {}
        if func in _MAKES_IT_HERE:
            return func(*args, **kwargs)
        tensors = tensors_among((args, kwargs))
        for leaf in tensors:
            if isinstance(leaf, FakeTensor) or wraps_others(leaf):
                continue
            self._note(leaf)
            if leaf.layout != torch.strided:
                raise TraceError(f"{users_line()}uses a sparse tensor: {SPARSE}")
            if schema_of(func).is_mutable and leaf is args[0]:
                raise TraceError(
                    f"{users_line()}changes {_form(leaf)} in place that is no buffer: make it one "
                    "(register_buffer), so that its value persists across iterations"
                )
        outside = self._outside(tensors)
        try:
            made = func(*args, **kwargs)
        except Exception as error:
            if outside and is_value_dependent(error):
                first, place = outside[0], self._found[id(outside[0])][1]
                if not self._is_held(first) and _path_in_library(first, place) is None:
                    raise TraceError(_refusal(first, users_line(), self._iteration)) from None
            raise
        next(self._calls)  # only now: a call that fails is not counted as progress
        for leaf in tensors_among(made):
            if (
                leaf.layout != torch.strided and torch.is_grad_enabled()
            ):  # no gradient, which has its own line
                raise TraceError(f"{users_line()}makes a sparse tensor: {SPARSE}")
            # All arguments are from outside, hence the result too: a one-hot of labels, say.
            if len(outside) == len(tensors) > 0:
                self._follows[leaf] = outside[0]
        return made

    def held_by(self, iteration: Iteration) -> dict[int, Path]:
        """Return the paths of those that attributes hold, by the identity of the tensor.

        Raises TraceError for others.
        """
        if not self._found:
            return {}
        held = {id(thing): path for path, thing in reachable(roots_of(iteration)) if is_a(thing, Tensor)}
        for key, (tensor, place) in self._found.items():
            if key not in held and (path := _path_in_library(tensor, place)) is not None:
                held[key] = path
            if key not in held or tensor.requires_grad:
                raise TraceError(_refusal(tensor, place, iteration))
        return {key: held[key] for key in self._found}

    def _outside(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return the tensors among a call's arguments that came from outside.

        For a tensor that follows from such tensors alone, one of these is returned.
        """
        if not self._found:
            return []
        found = (self._found[id(t)][0] if id(t) in self._found else self._follows.get(t) for t in tensors)
        return [tensor for tensor in found if tensor is not None]

    def _is_held(self, tensor: Tensor) -> bool:
        """Tell whether an attribute holds the tensor: then it is not a label in a closure."""
        return _path_to(tensor, roots_of(self._iteration), parts_of) is not None

    def _note(self, tensor: Tensor) -> None:
        if id(tensor) not in self._given and id(tensor) not in self._found:
            # Held with its id, which another tensor would get otherwise.
            self._found[id(tensor)] = (tensor, users_line())


class HeldTensors:
    """The constants and random generators of a program that attributes hold, as they were when a step was
    made."""

    def __init__(
        self, iteration: Iteration, held: Mapping[Path, Tensor], generators: Mapping[Path, torch.Generator]
    ) -> None:
        libraries = {path[1]: vars(sys.modules[str(path[1])]) for path in held if path[0] == _LIBRARY}
        self._roots = {**roots_of(iteration), _LIBRARY: libraries}
        self._known = {path: (tensor, version_of(tensor)) for path, tensor in held.items()}
        self._generators = generators

    def check(self) -> None:
        """Raise MismatchError if a tensor has been changed or replaced; a generator may be seeded."""
        for path, generator in self._generators.items():
            if follow(self._roots, path) is not generator:
                raise MismatchError(
                    f"{spelled(path)} is another torch.Generator now: seed the one that the plan draws "
                    "from, by "
                    "manual_seed, or plan the module anew"
                )
        for path, (tensor, version) in self._known.items():
            if follow(self._roots, path, _data_of) is not tensor or version_of(tensor) != version:
                raise MismatchError(
                    f"the tensor {spelled(path)} has changed since the plan was made, which holds it as it "
                    "was: make it a buffer of the module, or an input"
                )


def roots_of(iteration: Iteration) -> dict[str, Any]:
    """Return the objects from which a walk over the attributes that an iteration can reach starts."""
    loss_fn = iteration.loss_fn
    owner = loss_fn.__self__ if is_a(loss_fn, MethodType) else loss_fn
    return {"module": iteration.module, "loss_fn": owner}


def _refusal(tensor: Tensor, place: str, iteration: Iteration) -> str:
    if (owner := _module_with(tensor, iteration)) is not None:
        return (
            f"{place}uses {spelled(owner)}, a module that is no part of the planned one: put "
            "@memplan.optimize(budget=...) above a function of model and batch that returns the loss, which "
            "may use several, or make it an attribute of the model"
        )
    what = f"{place}uses {_form(tensor)}"
    if tensor.requires_grad:
        return f"{what} that needs a gradient and is no parameter of the module"
    empty = (tuple, list, Mapping)
    opaque = (
        (name, x)
        for name, x in others_in(iteration.inputs).items()
        if not is_plain(x) and not callable(x) and not isinstance(x, empty)
    )
    if (found := next(opaque, None)) is not None:
        return (
            f"{what} that is no parameter, buffer or input; the input {found[0]} is a "
            f"{type(found[1]).__name__}, which can't be taken apart: give its tensors in a dict, "
            "a tuple or a dataclass, or tell PyTorch how with torch.utils._pytree.register_pytree_node"
        )
    return (
        f"{what} that is no parameter, buffer or input: every later iteration would compute with its values "
        "of now; give labels, masks and indices as targets, for loss_fn(output, targets) (a model file: "
        "return model, inputs, loss_fn, targets), or make it a buffer or an input"
    )


def _path_in_library(tensor: Tensor, place: str) -> Path | None:
    """Return the path to a constant of the library whose code uses it; None if it is none.

    place: the line, as `at_line` writes it.
    """
    package = library_of(place)
    names = [name for name in sys.modules if package and f"{name}.".startswith(f"{package}.")]
    tables = {_LIBRARY: {name: vars(sys.modules[name]) for name in names}}
    return _path_to(tensor, tables, _data_of)


def _path_to(tensor: Tensor, roots: Any, parts: Callable[[Any], Parts]) -> Path | None:
    return next((path for path, thing in reachable(roots, parts) if thing is tensor), None)


def _data_of(thing: Any) -> Parts:
    """Yield what `parts_of` yields, and the attributes of a library's classes."""
    return iter(vars(thing).items()) if isinstance(thing, type) else parts_of(thing)


def _module_with(tensor: Tensor, iteration: Iteration) -> Path | None:
    """Return the path to a module that has the tensor and is reached by code alone."""
    roots = {"module": iteration.module, "loss_fn": iteration.loss_fn}
    for path, thing in reachable(roots, parts_with_code):
        if isinstance(thing, nn.Module) and any(
            each is tensor for each in (*thing.parameters(), *thing.buffers())
        ):
            return path
    return None


def _form(tensor: Tensor) -> str:
    return f"a tensor from outside, {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)},"
