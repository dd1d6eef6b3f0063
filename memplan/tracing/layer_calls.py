"""Calls of forward, layer by layer: whether all equal layers do what a few of them do.

    all of 24     before  first  inner … inner  last  after
    4 of them     before  first  inner  inner   last  after

A call is its operator, its numbers, its results' layouts, and where its tensors come from: from a call so
many positions into the same layer or the layer before, from the first or the last layer, from outside the
layers, or from a parameter's place in its layer. If forward of all layers is that of the few, with the inner
layer repeated, so is backward: PyTorch's formulas of the same calls. A model with formulas or hooks of its
own is refused here, and compared by whole traces (repeated.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..torch_support.torch_fakes import FakeTensor, TorchDispatchMode, no_dispatch_modes
from ..torch_support.torch_trees import tensors_among
from .equal_layers import KEPT, EqualLayers

aten: Any = torch.ops.aten
_LIFTS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)
_MOST_NUMBERS = 64
"""Elements of a constant that is compared number by number."""

Layer = tuple[int, int]
"""A list of equal layers, and the layer's number among them."""
Key = tuple[Any, ...]
"""A call, or where a tensor comes from, in words that are the same in every layer that does the same."""


class UnlikeError(Exception):
    """Error: these calls can't be compared layer by layer."""


class LayerCalls(TorchDispatchMode):
    """Mode that records forward's calls. It must be the first to be entered after the fake tensors' own.

    lists: the lists of equal layers, and how many each has now.
    residents: parameters, buffers and inputs of the trace, by name.
    outside: calls outside the layers, with an entry where each list begins. layers: those of each layer.
    """

    def __init__(
        self, module: nn.Module, lists: Sequence[tuple[EqualLayers, int]], residents: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._counts = [count for _one, count in lists]
        self._prefixes = [f"{one.path}." for one, _count in lists]
        self._firsts = [one.first for one, _count in lists]
        self._numbers = {
            part: (number, index - one.first)
            for number, (one, _count) in enumerate(lists)
            for index, part in enumerate(module.get_submodule(one.path).children())
            if index >= one.first
        }
        self._come_from = {id(tensor): self._of_name(name) for name, tensor in residents.items()}
        self._kept: list[Any] = []  # so that no identity is another tensor's
        self._current: Layer | None = None
        self.outside: list[Key] = []
        self.layers: dict[Layer, list[Key]] = {}

    @contextmanager
    def forward(self) -> Generator[None]:
        """Note meanwhile which layer runs."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave).remove)
            stack.enter_context(_NoHooks())
            yield

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        layer = self._numbers.get(module)
        if layer is None:
            return
        before = None if layer[1] == 0 else (layer[0], layer[1] - 1)
        # Layers that run in another order, or twice, are no simple repetition.
        if self._current != before or layer in self.layers:
            raise UnlikeError
        if before is None:
            self.outside.append(("list", layer[0]))
        self._current, self.layers[layer] = layer, []

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        layer = self._numbers.get(module)
        # What follows a layer is of that layer, until the next one begins.
        if layer is not None and layer[1] == self._counts[layer[0]] - 1:
            self._current = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _constant(args[0]) if func in _LIFTS else (self._described(args), self._described(kwargs))
        made = func(*args, **kwargs)
        results = tensors_among(made)
        calls = self.outside if self._current is None else self.layers[self._current]
        for number, result in enumerate(results):
            self._come_from[id(result)] = self._current, (len(calls), number)
        self._kept.append(results)
        forms = [(each.shape, each.stride(), each.dtype, each.device) for each in results]
        # Under no_grad a layer makes the same calls and has no backward.
        calls.append((func, given, forms, torch.is_grad_enabled()))
        return made

    def _of_name(self, name: str) -> tuple[Layer | None, Key]:
        for number, prefix in enumerate(self._prefixes):
            if name.startswith(prefix):
                index, _dot, rest = name.removeprefix(prefix).partition(".")
                if int(index) >= self._firsts[number]:
                    return (number, int(index) - self._firsts[number]), (rest,)
        return None, (name,)

    def _described(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self._described_tensor(argument)
        if isinstance(argument, tuple | list):
            return [self._described(part) for part in argument]
        if isinstance(argument, Mapping):
            return [(name, self._described(part)) for name, part in argument.items()]
        return type(argument), argument

    def _described_tensor(self, tensor: Tensor) -> Key:
        if id(tensor) not in self._come_from:
            if not isinstance(tensor, FakeTensor) or self._current is not None:
                raise UnlikeError
            self._kept.append(tensor)
            return "constant", tensor.shape, tensor.stride(), tensor.dtype
        layer, place = self._come_from[id(tensor)]
        if layer is None:
            return "outside", place
        of, number = layer
        if self._current is not None and self._current[0] == of and 0 <= self._current[1] - number <= 1:
            return "before", self._current[1] - number, place
        if number not in (0, self._counts[of] - 1):
            raise UnlikeError
        return "last" if number else "first", of, place


class _NoHooks(TorchFunctionMode):
    """Mode that refuses hooks on gradients: their calls are no formula's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "hook" in getattr(func, "__name__", ""):
            raise UnlikeError
        return func(*args, **(kwargs or {}))


def _constant(tensor: Tensor) -> Key:
    """Describe a tensor that the code has made of numbers."""
    if isinstance(tensor, FakeTensor):
        return "constant", tensor.shape, tensor.dtype
    if tensor.numel() > _MOST_NUMBERS:
        raise UnlikeError
    with no_dispatch_modes():
        return "numbers", tensor.shape, tensor.dtype, tensor.tolist()


def refuse_own_formulas(loss: Tensor) -> None:
    """Raise UnlikeError if a gradient that the loss needs is computed by a formula written in Python."""
    seen, following = set[Any](), [loss.grad_fn]
    while following:
        node = following.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            raise UnlikeError
        seen.add(node)
        following += [each for each, _index in node.next_functions]


def repeats(few: LayerCalls, every: LayerCalls, lists: Sequence[EqualLayers]) -> bool:
    """Tell whether forward of all layers is that of the KEPT ones with the inner layer repeated."""
    last = KEPT - 1
    return few.outside == every.outside and all(
        every.layers[number, 0] == few.layers[number, 0]
        and every.layers[number, one.equal - 1] == few.layers[number, last]
        and all(few.layers[number, inner] == few.layers[number, 1] for inner in range(2, last))
        and all(every.layers[number, inner] == few.layers[number, 1] for inner in range(2, one.equal - 1))
        and every.layers[number, 1] == few.layers[number, 1]
        for number, one in enumerate(lists)
    )


Forward = Callable[[Callable[[Mapping[str, Tensor]], LayerCalls]], LayerCalls]
"""A function that runs forward once under the mode that the given function makes of the residents."""
