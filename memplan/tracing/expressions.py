"""Digests of what each tensor is computed from, to compare the iterations of a row.

The content of a memory is an expression of the iteration's weights, buffers, inputs, random numbers and of
constants. Two iterations compute the same if their results are equal expressions. What an iteration has left
in an attribute is `before(...)` to the next one, unless nothing of it can be other then: a table of positions
stays what it is, a mean of the batch doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..devices.calls.randomness import draws
from ..guards.reads.contents import content
from ..torch_support.torch_fakes import FakeTensor, TorchDispatchMode
from ..torch_support.torch_operators import schema_of, written_tensors
from ..torch_support.torch_tensors import memory_of
from ..torch_support.torch_trees import tensors_among, tree_leaves
from .known_values import SHAPE_ALONE

ALWAYS, INPUTS, _FIRST_RESIDENT = 1, 2, 2
"""Bits of what an expression depends on: trained weights and random numbers, inputs, then each resident."""


class _Expression(NamedTuple):
    """Expression of a tensor's content.

    digest: hash of the expression.
    depends: bits of what it depends on.
    """

    digest: int
    depends: int


def _form(tensor: Tensor) -> int:
    return hash((tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()))


class Expressions(TorchDispatchMode):
    """Mode that notes, by the memory of each tensor, what its content is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, _Expression] = {}
        self._held: dict[int, torch.UntypedStorage] = {}  # so that no other memory gets its identity
        self._symbols: dict[int, _Expression] = {}
        self._drawn = self._unknown = 0

    def begin(
        self,
        residents: Iterable[tuple[str, Tensor, bool]],
        inputs: Iterable[tuple[str, Tensor]],
        *,
        same: bool,
    ) -> None:
        """Begin another iteration.

        residents: name, tensor, whether it is trained.
        inputs: name, tensor.
        same: it has the batch of the iteration before.
        """
        other = ALWAYS | (0 if same else INPUTS)
        for memory, symbol in self._symbols.items():
            if self._of[memory].digest != symbol.digest:
                other |= symbol.depends  # written by the iteration before
        for memory, found in self._of.items():
            if found.depends & other:
                self._of[memory] = _Expression(hash(("before", found.digest)), found.depends)
        self._symbols = {}
        for number, (name, tensor, trained) in enumerate(residents):
            depends = 1 << (_FIRST_RESIDENT + number) | (ALWAYS if trained else 0)
            self._set(tensor, _Expression(hash(name), depends))
            self._symbols.setdefault(memory_of(tensor), self._of[memory_of(tensor)])
        for name, tensor in inputs:
            self._set(tensor, _Expression(hash(("input", name)), INPUTS))
        self._drawn = self._unknown = 0

    def of(self, tensor: Tensor) -> int:
        """Return the expression of a tensor, which is a part of its memory."""
        return hash((self._at(tensor).digest, _form(tensor)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        tensors = [each for each in given if isinstance(each, Tensor)]
        depends = 0
        of = _form if func in SHAPE_ALONE else self.of  # `x.new_zeros(4)` is the same for each batch
        for tensor in tensors if of == self.of else ():
            depends |= self._at(tensor).depends
        parts: list[Any] = [str(func)]
        if draws(func, args, kwargs):
            self._drawn += 1
            parts.append(self._drawn)
            depends |= ALWAYS
        parts += (of(each) if isinstance(each, Tensor) else repr(each) for each in given)
        known = {memory_of(tensor) for tensor in tensors}
        made = func(*args, **kwargs)
        digest = hash(tuple(parts))
        for number, each in enumerate(tensors_among(made)):
            if memory_of(each) not in known:
                self._set(each, _Expression(hash((digest, number)), depends))
        if schema_of(func).is_mutable:
            for number, each in enumerate(written_tensors(func, args, kwargs)):
                self._set(each, _Expression(hash((digest, "written", number)), depends))
        return made

    def _set(self, tensor: Tensor, found: _Expression) -> None:
        memory = memory_of(tensor)
        self._of[memory] = found
        self._held[memory] = tensor.untyped_storage()

    def _at(self, tensor: Tensor) -> _Expression:
        found = self._of.get(memory_of(tensor))
        if found is None:
            self._unknown += 1  # a constant that code makes: the same one in each iteration
            value: Any = self._unknown if isinstance(tensor, FakeTensor) else content(tensor)
            self._set(tensor, found := _Expression(hash(("constant", value)), 0))
        return found
