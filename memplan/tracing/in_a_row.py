"""Iterations in a row on fake tensors: the state that one leaves may make the next compute something else.

A cache is filled by the first iteration and gives the same to all; a hidden state, a mode that switches or a
batch that is kept for the next one do not. An iteration that reads what it changes is traced three times,
each time with the state that the one before has left: the second has another batch than the first, the third
has the second's. If all three compute the same expressions, and the state that is read moves
no further, the plan of the first is right for every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..devices.calls.randomness import draws
from ..guards.reads.carried import Carried, StateError
from ..guards.reads.contents import content
from ..torch_support.torch_fakes import FakeTensor, TorchDispatchMode
from ..torch_support.torch_make_fx import make_fx
from ..torch_support.torch_operators import schema_of, written_tensors
from ..torch_support.torch_tensors import memory_of
from ..torch_support.torch_trees import tensors_among, tree_leaves
from ..torch_support.unsupported import TraceError
from .host_part import Named
from .known_values import SHAPE_ALONE


def refuse_what_moves(
    carried: Sequence[Carried],
    residents: Named,
    inputs: Named,
    run: Callable[[Named], tuple[list[Tensor], str]],
) -> None:
    """Raise TraceError if iterations in a row compute different things. The fake mode is on.

    carried: state that the iteration reads and changes.
    residents, inputs: fake tensors.
    run: one iteration with these inputs; returns its results, and all else that it returns as text.
    """
    expressions = Expressions()
    first: Any = None
    left: list[list[Any]] = []
    batch: Named = inputs
    for iteration in range(3):
        if iteration < 2:
            batch = {name: another(tensor) for name, tensor in inputs.items()}
        given = [(n, t, isinstance(t, nn.Parameter) and t.requires_grad) for n, t in residents.items()]
        expressions.begin(given, batch.items(), same=iteration == 2)
        try:
            computed = _expressions_of(expressions, residents, batch, run)
        except TraceError:
            raise
        except Exception as error:
            raise StateError(carried[0].refusal) from error
        left.append([each.content() for each in carried])
        moves = (
            [each for each, then, now in zip(carried, *left[-2:], strict=True) if then != now]
            if iteration
            else []
        )
        if iteration and (moves or computed != first):
            raise StateError((moves or carried)[0].refusal)
        first = computed if first is None else first


def _expressions_of(
    expressions: Expressions,
    residents: Named,
    batch: Named,
    run: Callable[[Named], tuple[list[Tensor], str]],
) -> Any:
    """Return the expressions of an iteration's results and of what it leaves in residents, and what else
    it returns.
    """
    found: list[Any] = []

    def iterate(*_tensors: Tensor) -> list[Tensor]:
        with expressions:
            results, other = run(batch)
        found[:] = [expressions.of(each) for each in (*results, *residents.values())]
        found.append(other)
        return results

    make_fx(iterate)(*residents.values(), *batch.values())
    return found


def another(tensor: Tensor) -> Tensor:
    """Create a tensor of the same form, another object in separate memory."""
    if type(tensor) is not FakeTensor:
        return tensor.detach().clone()
    form: Any = {"dtype": tensor.dtype, "device": tensor.device}
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), **form)


# ── what each tensor is computed from ────────────────────────────────────────────────────────────────

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
    """Mode that notes, by the memory of each tensor, what its content is computed from.

    The content of a memory is an expression of the iteration's weights, buffers, inputs, random numbers and
    of constants. Two iterations compute the same if their results are equal expressions. What an iteration
    has left in an attribute is `before(...)` to the next one, unless nothing of it can be other then: a table
    of positions stays what it is, a mean of the batch doesn't.
    """

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
