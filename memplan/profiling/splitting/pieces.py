"""The runs of a region in pieces, as one call: of a piece only its own intermediates exist.

Results along the rows are written into their memory piece by piece. Sums are added up in the order of the
pieces, so the bits are the same in each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...devices.measuring.synthetic_inputs import substitute
from ...program.call_text import call_text
from ...program.program import Call, Ref, Value, values_read
from .region import Region, first_made, made_by
from .rows import Along
from .rules import SUM, Accumulate, Part, Pattern

MOST_WIDE = 2**16
"""Bytes of sums of float16 or bfloat16 that are added up in float32: the others would take too much."""


class _Step(NamedTuple):
    """A call of a piece.

    accumulate: adds its result to the sum, without making it.
    drop: values that nothing after it reads.
    results: positions in the region's results of what it makes.
    """

    call: Call
    accumulate: Accumulate | None
    drop: tuple[int, ...]
    results: tuple[tuple[int, int], ...]


class Pieces:
    """A region's calls as one function of the values that it reads, which returns those that others need.

    key: the same for regions that compute the same, in as many pieces, from inputs of the same forms.
    """

    def __init__(self, region: Region, outputs: tuple[int, ...], rows: int) -> None:
        self._rows, self._all = rows, region.rows
        values = region.program.values
        self._inputs = region.inputs
        self._forms: list[Value] = [values[value] for value in outputs]
        calls = region.calls
        patterns = [region.patterns[first_made(call)] for call in calls]
        # A tensor of others may be read as a whole and in pieces: the piece gets a number of its own.
        self._sliced = {
            value: (-1 - value, part)
            for found in patterns
            for value, part in found.inputs.items()
            if value in self._inputs and isinstance(part, Along)
        }
        self._parts: list[Part] = []
        made: dict[int, Part] = {}
        for call, found in zip(calls, patterns, strict=True):
            made |= {v: p for v, p in zip(call.outputs, found.outputs, strict=True) if v is not None}
        self._parts = [made[value] for value in outputs]
        self._before = [one for found in patterns for one in (found.before or {}).values()]
        self._steps: dict[tuple[int, bool, bool], list[_Step]] = {}
        for piece in self._pieces():
            if (kind := self._kind(*piece)) not in self._steps:
                given = [found.in_piece(c, values, *piece) for c, found in zip(calls, patterns, strict=True)]
                self._steps[kind] = self._made_steps(calls, patterns, outputs, given)
        pieces = -(-region.rows // rows)
        self.__name__ = f"in_{pieces}_pieces"
        self.key = sha256(self._text(region, calls, outputs).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{self.__name__} {self.key}"

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        given = dict(zip(self._inputs, tensors, strict=True))
        for call in self._before:
            given |= _called(call, given)
        results: list[Any] = [None] * len(self._forms)
        for first, rows in self._pieces():
            known = dict(given)
            for value, (piece, along) in self._sliced.items():
                known[piece] = along.piece(given[value], first, rows)
            for step in self._steps[self._kind(first, rows)]:
                self._run(step, known, results, first, rows)
        return results

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield of each piece its first row and their number."""
        for first in range(0, self._all, self._rows):
            yield first, min(self._rows, self._all - first)

    def _kind(self, first: int, rows: int) -> tuple[int, bool, bool]:
        """Return what pieces with the same calls have in common: the first and the last may lack rows."""
        return rows, first == 0, first + rows == self._all

    def _run(self, step: _Step, known: dict[int, Tensor], results: list[Any], *piece: int) -> None:
        if step.accumulate is not None and results[step.results[0][0]] is not None:
            arguments = substitute(step.call.arguments, known)
            step.accumulate(results[step.results[0][0]], *arguments)
        else:
            known |= _called(step.call, known)
            for place, value in step.results:
                results[place] = self._written(place, results[place], known[value], *piece)
        for value in step.drop:
            known.pop(value, None)

    def _written(self, place: int, result: Tensor | None, made: Tensor, first: int, rows: int) -> Tensor:
        """Write what a piece has made into a result."""
        part, form = self._parts[place], self._forms[place]
        if isinstance(part, Along):
            if result is None:
                result = _empty(form, made)
            part.piece(result, first, rows).copy_(made)
            return result
        if part is SUM and _is_rounded(form):
            wide = made.float() if result is None else result.add_(made)
            # Rounded once, after the last piece.
            return wide if first + rows < self._all else _empty(form, made).copy_(wide)
        if result is None:
            # A view would keep all of the memory that it is in.
            exact = made.untyped_storage().nbytes() == form.end and tuple(made.stride()) == form.strides
            return made if exact else _empty(form, made).copy_(made)
        # WHOLE: each piece makes the same, so the first one stays.
        return result.add_(made) if part is SUM else result

    def _made_steps(
        self,
        calls: Sequence[Call],
        patterns: Sequence[Pattern],
        outputs: Sequence[int],
        given: Sequence[Call],
    ) -> list[_Step]:
        """Return the steps of a piece. given: its calls."""
        last = {v: i for i, call in enumerate(calls) for v in (*values_read(call), *made_by(call))}
        last = {v: i for v, i in last.items() if v not in self._inputs}
        place = {value: i for i, value in enumerate(outputs)}
        steps: list[_Step] = []
        early = {v for call in self._before for v in made_by(call)}
        for i, (call, found) in enumerate(zip(calls, patterns, strict=True)):
            drop = tuple(v for v, end in last.items() if end == i and v not in early)
            results = tuple((place[v], v) for v in made_by(call) if v in place)
            # Nothing else of the piece reads the term, and it is added up in its own type.
            alone = results and last[results[0][1]] == i and not _is_rounded(self._forms[results[0][0]])
            sums = found.accumulate if alone else None
            steps.append(_Step(self._of_pieces(call, given[i], found), sums, drop, results))
        return steps

    def _of_pieces(self, call: Call, made: Call, found: Pattern) -> Call:
        """Return the call of a piece so that it reads pieces of the region's inputs."""
        numbers = {value: Ref(value) for value in values_read(call)}
        for value, part in found.inputs.items():
            if value in self._sliced and isinstance(part, Along):
                numbers[value] = Ref(self._sliced[value][0])
        numbers |= {value: Ref(value) for value in values_read(made) if value not in numbers}
        arguments, keywords = (_renumbered(part, numbers) for part in (made.arguments, made.keywords))
        return Call(made.target, arguments, keywords, made.outputs, made.several)

    def _text(self, region: Region, calls: Sequence[Call], outputs: Sequence[int]) -> str:
        """Return a text that is the same for what computes the same. Values are numbered as they appear."""
        number: dict[int, int] = {}

        def name(value: int) -> str:
            return str(number.setdefault(value, len(number)))

        def form(value: int) -> str:
            _storage, shape, strides, _offset, dtype, device = region.program.values[value]
            return f"%{name(value)} {shape} {strides} {dtype} {device.type}"

        lines = [f"{self._all} rows, {self._rows} a piece", *map(form, region.inputs)]
        for call in calls:
            made = [None if v is None else form(v) for v in call.outputs]
            parts = region.patterns[first_made(call)].outputs
            lines.append(f"{call_text(call, name)} -> {made} {parts}")
        return "\n".join([*lines, *map(form, outputs)])


def _renumbered(argument: Any, numbers: Mapping[int, Ref]) -> Any:
    """Return the argument with other values."""
    refs: Any = numbers
    return substitute(argument, refs)


def _called(call: Call, known: Mapping[int, Tensor]) -> dict[int, Tensor]:
    made = call.target(*substitute(call.arguments, known), **substitute(call.keywords, known))
    results = made if call.several else (made,)
    return {v: one for v, one in zip(call.outputs, results, strict=True) if v is not None}


def _is_rounded(form: Value) -> bool:
    """Tell whether a sum is added up in float32: one of few bytes whose own type has few digits."""
    few = form.end <= MOST_WIDE
    return few and form.dtype.is_floating_point and form.dtype.itemsize < torch.float32.itemsize


def _empty(form: Value, made: Tensor) -> Tensor:
    """Create a result where a piece of it was made: of an estimate, on no device."""
    return made.new_empty_strided(form.shape, form.strides, dtype=form.dtype)
