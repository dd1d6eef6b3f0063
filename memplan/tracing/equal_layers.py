"""Layers of a module that are equal but for their weights, and the module with only some of them.

    list of 24 layers, equal      ──shortened──▶   the first KEPT of them
    list of 12, the first another ──shortened──▶   that one and KEPT of the others

Layers are equal if they are of one class and have equal attributes, forms of tensors, and parts; numbers may
count them (`layer_idx`). Whether the code does the same in each shows only in a trace of all: repeated.py.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from torch import Tensor, nn

from ..torch_support.torch_modules import with_first_parts

KEPT = 4
"""Layers that remain: the first, the last, and two between them, which must come out equal."""

_LEAST = KEPT + 2
"""Equal layers from which on a trace of some costs less."""

_COUNTS_LAYERS = re.compile("layer|depth|block", re.IGNORECASE)
"""Names of attributes that say how many layers there are."""


class EqualLayers(NamedTuple):
    """Equal layers at the end of a list.

    path: of the list. first: index of the first equal one. equal: how many are equal.
    """

    path: str
    first: int
    equal: int


def equal_layers(module: nn.Module) -> list[EqualLayers]:
    """Return the lists of a module that have enough equal layers, none of them within another."""
    found: list[EqualLayers] = []
    for path, part in module.named_modules():
        within = any(path.startswith(f"{one.path}.") or path == one.path for one in found)
        if isinstance(part, nn.ModuleList | nn.Sequential) and not within:
            layers = list(part)
            # A Sequential with other names, which a path by index would miss.
            if [name for name, _layer in part.named_children()] != [*map(str, range(len(layers)))]:
                continue
            first = len(layers) - 1
            # From the end: models differ in their first layers (dense before experts), not in the last.
            while first > 0 and _Comparison(len(layers) - first).equal(layers[first - 1], layers[-1]):
                first -= 1
            if (count := len(layers) - first) >= _LEAST and _owns_its_weights(module, part, first):
                found.append(EqualLayers(path, first, count))
    return found


@contextmanager
def shortened(module: nn.Module, layers: Sequence[EqualLayers]) -> Generator[None]:
    """Leave only KEPT of the equal layers in the lists meanwhile, and say so in the attributes that give the
    number of layers.
    """
    with ExitStack() as stack:
        for one in layers:
            owner = module.get_submodule(one.path)
            total = one.first + one.equal
            stack.enter_context(with_first_parts(owner, one.first + KEPT))
            for thing in _told_of_layers(module, one.path):
                for name, value in list(vars(thing).items()):
                    # By name too: the number of heads may equal that of layers.
                    if type(value) is int and value == total and _COUNTS_LAYERS.search(name):
                        stack.enter_context(patch.object(thing, name, one.first + KEPT))
        yield


def _told_of_layers(module: nn.Module, path: str) -> Iterator[Any]:
    """Yield the modules that hold the list, from the outermost, and their configurations."""
    seen: set[int] = set()
    names = path.split(".")
    for length in range(len(names)):
        part = module.get_submodule(".".join(names[:length]))
        config = getattr(part, "config", None)
        for thing in (part, config):
            if hasattr(thing, "__dict__") and id(thing) not in seen:
                seen.add(id(thing))
                yield thing


def _owns_its_weights(module: nn.Module, part: nn.ModuleList | nn.Sequential, first: int) -> bool:
    """Tell whether no parameter or buffer of the layers from `first` on is in two of them, or elsewhere too.

    part: the list of the layers.
    """
    layers = list(part)
    own = [id(tensor) for layer in layers[first:] for tensor in _tensors(layer)]
    # Without the list: a part of a layer that the model holds by another name too is met outside.
    passed: set[nn.Module] = {part}
    outside = [
        id(tensor)
        for root in (module, *layers[:first])
        for _name, each in root.named_modules(memo=passed)
        for tensor in _direct_tensors(each)
    ]
    return len(own) == len(set(own)) and not set(own) & set(outside)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    for part in module.modules():
        yield from _direct_tensors(part)


def _direct_tensors(part: nn.Module) -> Iterator[Tensor]:
    yield from part.parameters(recurse=False)
    yield from part.buffers(recurse=False)


class _Comparison:
    """Comparison of one layer with another that is `distance` further in the list."""

    def __init__(self, distance: int) -> None:
        self._distance = distance
        self._seen: set[tuple[int, int]] = set()

    def equal(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        # A pair in progress counts as equal: layers may refer to themselves, and a difference shows anyway.
        if (id(one), id(other)) in self._seen:
            return True
        self._seen.add((id(one), id(other)))
        if isinstance(one, Tensor):
            return _form(one) == _form(other)
        if isinstance(one, MethodType):
            return one.__func__ is other.__func__ and self.equal(one.__self__, other.__self__)
        if isinstance(one, Mapping):
            return self._equal_items(cast(Mapping[Any, Any], one), other)
        if isinstance(one, tuple | list):
            pair = cast(Sequence[Any], one), cast(Sequence[Any], other)
            return len(pair[0]) == len(pair[1]) and all(map(self.equal, *pair))
        if not isinstance(one, type) and hasattr(one, "__dict__"):
            return self._equal_attributes(one, other)
        return bool(one == other)

    def _equal_items(self, one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
        return list(one) == list(other) and all(self.equal(one[key], other[key]) for key in one)

    def _equal_attributes(self, one: Any, other: Any) -> bool:
        here, there = vars(one), vars(other)
        if list(here) != list(there):
            return False
        for name, value in here.items():
            # `type`, not isinstance: True - False is 1 too.
            counts = type(value) is type(there[name]) is int and there[name] - value == self._distance
            if not counts and not self.equal(value, there[name]):
                return False
        return True


def _form(tensor: Tensor) -> tuple[Any, ...]:
    layout = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    return type(tensor), *layout, tensor.requires_grad, tensor.is_leaf
