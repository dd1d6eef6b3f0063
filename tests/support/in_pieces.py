"""Calls in pieces, compared with the same calls as a whole: an oracle of the rules of splitting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from memplan.devices.measuring.synthetic_inputs import substitute
from memplan.profiling.splitting.operators import pattern
from memplan.profiling.splitting.rows import Along
from memplan.profiling.splitting.rules import SUM, WHOLE, Pattern
from memplan.program.program import Call, Ref, Value
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

ERRORS, UNITS = 4, 64
"""A result in pieces may have so many times the error of the whole one, and so many rounding errors."""


aten: Any = torch.ops.aten

UNDEFINED = {aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default}
UNDEFINED |= {aten.empty.memory_format}
"""They return memory as it is."""


class Checked(TorchDispatchMode):
    """Mode that runs each call also in pieces, along all rows that its rule knows.

    split: per operator how many ways it was split.
    inexact: per operator how many of these had other bits than the whole.
    rounded: names of those that may have other bits along rows. Sums always may.
    first: only rows along the first dimension of all tensors.
    """

    def __init__(self, rounded: frozenset[str] = frozenset(), *, first: bool = False) -> None:
        super().__init__()
        self._first = first
        self.split, self.inexact, self.rounded = Counter[str](), Counter[str](), rounded
        self._checks = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable or self._checks:
            return func(*args, **kwargs)
        return self.check(func, args, kwargs)

    def check(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the target, and return its results."""
        self._checks = True
        try:
            return self._check(target, args, kwargs)
        finally:
            self._checks = False

    def _check(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        made = target(*args, **kwargs)
        name = target.overloadpacket.__name__ if hasattr(target, "overloadpacket") else target.__name__
        site = Traced(target, args, kwargs, made)
        for _at, _along, found in site.ways():
            if self._first and {*found.inputs.values()} - {Along(0, 1), WHOLE}:
                continue
            for rows in site.sizes(found):
                self.split[name] += 1
                exact = site.compare(found, rows, exact=name not in self.rounded)
                self.inexact[name] += not exact and SUM not in found.outputs
        return made


class Traced:
    """A call with its tensors, as a program has it."""

    def __init__(self, target: Any, args: Any, kwargs: Any, made: Any) -> None:
        self.values: list[Value] = []
        self.tensors: dict[int, Tensor] = {}
        self._known: dict[int, int] = {}
        several = isinstance(made, tuple | list)
        given = tuple(self._refs(one) for one in args)
        keywords = {name: self._refs(one) for name, one in kwargs.items()}
        self.results: Sequence[Any] = made if several else (made,)
        outputs = tuple(self._add(one) if isinstance(one, Tensor) else None for one in self.results)
        self.call = Call(target, given, keywords, outputs, several)

    def _refs(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            if id(argument) not in self._known:
                self._known[id(argument)] = self._add(argument)
                self.tensors[self._known[id(argument)]] = argument
            return Ref(self._known[id(argument)])
        if isinstance(argument, tuple | list):
            return type(argument)(self._refs(part) for part in argument)
        return argument

    def _add(self, tensor: Tensor) -> int:
        form = tuple(tensor.shape), tuple(tensor.stride()), 0, tensor.dtype, tensor.device
        self.values.append(Value(len(self.values), *form))
        return len(self.values) - 1

    def ways(self) -> Iterator[tuple[int, Along, Pattern]]:
        """Yield how it splits along each dimension, and each two neighbours, of each of its tensors."""
        for at, value in enumerate(self.values):
            for along in _alongs(value.shape):
                if found := pattern(self.call, self.values, at, along):
                    self._check(found, at, along)
                    yield at, along, self._from_first(found)

    def _from_first(self, found: Pattern) -> Pattern:
        """Return the pattern with rows counted from the first one of all tensors, as regions have them."""
        parts = [part for _value, part in self._parts(found) if isinstance(part, Along)]
        before, after = min(part.before for part in parts), min(part.after for part in parts)
        return found.moved(-before, -after)

    def rows(self, found: Pattern) -> int:
        parts = self._parts(found)
        return next(p.region_rows(self.values[v].shape) for v, p in parts if isinstance(p, Along))

    def _check(self, found: Pattern, at: int, along: Along) -> None:
        """Check that the rows are where they were asked for, and as many in each tensor."""
        parts = self._parts(found)
        shape = self.values[at].shape
        assert set(found.inputs) == set(self.tensors), (self.call, found)
        own = next(part for value, part in parts if value == at)
        assert isinstance(own, Along), (self.call, found, at, along)
        assert own.trimmed(shape) == along.trimmed(shape), (self.call, found, at, along)
        for value, part in parts:
            if isinstance(part, Along):
                assert part.region_rows(self.values[value].shape) == along.rows(shape), (self.call, found)

    def _parts(self, found: Pattern) -> list[tuple[int, Any]]:
        outputs = zip(self.call.outputs, found.outputs, strict=True)
        return [*found.inputs.items(), *((v, part) for v, part in outputs if v is not None)]

    def sizes(self, found: Pattern) -> list[int]:
        """Return numbers of rows of a piece that all tensors have blocks of: the least, a middle one, all."""
        all_rows = self.rows(found)
        wished = sorted({1, -(-all_rows // 2), all_rows - 1} - {0})
        return [rows for rows in wished if self._blocks(found, all_rows, rows)]

    def _blocks(self, found: Pattern, all_rows: int, rows: int) -> bool:
        pieces = [(first, min(rows, all_rows - first)) for first in range(0, all_rows, rows)]
        for value, part in self._parts(found):
            if isinstance(part, Along):
                shape = self.values[value].shape
                sizes = {len(part.span(shape, *piece)) for piece in pieces}
                if 0 in sizes:
                    return False
                several = sum(size > 1 for size in shape[part.start : part.stop]) > 1
                if (several and len(sizes) > 1) or any(part.block(shape, size) is None for size in sizes):
                    return False
        return True

    def compare(self, found: Pattern, rows: int, *, exact: bool) -> bool:
        """Compare the results in pieces with those of the whole, and tell whether they have equal bits.

        exact: they must be equal along the rows. Else, and where they are summed, their error is measured
        against 64 bits.
        """
        made = self.in_pieces(found, rows, self.tensors)
        equal = True
        for place, (value, part) in enumerate(zip(self.call.outputs, found.outputs, strict=True)):
            if value is None:
                continue
            text = (self.call, found, rows)
            whole = self.results[place]
            assert (made[value].shape, made[value].dtype) == (whole.shape, whole.dtype), text
            if _same_bits(made[value], whole) or self.call.target in UNDEFINED:
                continue
            equal = False
            assert part is SUM or not exact, text
            assert whole.is_floating_point(), text
            true = self._wide()[place]
            own, other = (_error(one, true) for one in (made[value], whole))
            unit = torch.finfo(whole.dtype).eps * max(1.0, true.abs().max().item())
            assert own <= ERRORS * other + UNITS * unit, (own, other, *text)
        return equal

    def _wide(self) -> Sequence[Any]:
        tensors = {v: t.double() if t.is_floating_point() else t for v, t in self.tensors.items()}
        arguments, keywords = (
            tree_map(_widened, substitute(one, tensors)) for one in (self.call.arguments, self.call.keywords)
        )
        made = self.call.target(*arguments, **keywords)
        return made if self.call.several else (made,)

    def in_pieces(self, found: Pattern, rows: int, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return the results, by value."""
        given = dict(tensors)
        for call in (found.before or {}).values():
            given |= _called(call, given)
        results: dict[int, Tensor] = {v: given[v] for v in given if v not in tensors}
        all_rows = self.rows(found)
        for first in range(0, all_rows, rows):
            size = min(rows, all_rows - first)
            known = {
                value: part.piece(given[value], first, size) if isinstance(part, Along) else given[value]
                for value, part in found.inputs.items()
            } | {value: given[value] for value in given if value not in tensors}
            call = found.in_piece(self.call, self.values, first, size)
            if found.accumulate is not None and first:
                found.accumulate(next(iter(results.values())), *substitute(call.arguments, known))
                continue
            for value, made in _called(call, known).items():
                self._write(results, found, value, made, (first, size))
        return results

    def _write(
        self, results: dict[int, Tensor], found: Pattern, value: int, made: Tensor, piece: tuple[int, int]
    ) -> None:
        part = found.outputs[self.call.outputs.index(value)]
        if isinstance(part, Along):
            form = self.values[value]
            if value not in results:
                results[value] = torch.zeros(form.shape, dtype=form.dtype)
            place = part.piece(results[value], *piece)
            assert place.shape == made.shape, (self.call, found, place.shape, made.shape)
            place.copy_(made)
        elif value not in results:
            results[value] = made.clone()
        elif part is SUM:
            results[value] += made


def _alongs(shape: Sequence[int]) -> set[Along]:
    """Return all rows over one dimension or two, of one index each or of several."""
    spans = [(d, d + count) for count in (1, 2) for d in range(len(shape) - count + 1)]
    counts = {span: prod(shape[slice(*span)]) for span in spans}
    return {
        Along(*span, inner).trimmed(shape)
        for span in spans
        for inner in range(1, counts[span] + 1)
        if counts[span] % inner == 0 and (inner == 1 or inner < counts[span])
    }


def _called(call: Call, known: Mapping[int, Tensor]) -> dict[int, Tensor]:
    made = call.target(*substitute(call.arguments, known), **substitute(call.keywords, known))
    results = made if call.several else (made,)
    return {v: one for v, one in zip(call.outputs, results, strict=True) if v is not None}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.is_complex():
        one, other = (torch.view_as_real(each.resolve_conj()) for each in (one, other))
    nan_alike = one.is_floating_point() and torch.equal(one.isnan(), other.isnan())
    return torch.equal(one, other) or (nan_alike and torch.equal(one.nan_to_num(), other.nan_to_num()))


def _error(one: Tensor, true: Tensor) -> float:
    return (one.double() - true.double()).abs().max().item()


def _widened(leaf: Any) -> Any:
    return (
        torch.float64 if leaf in (torch.float32, torch.bfloat16) and isinstance(leaf, torch.dtype) else leaf
    )
