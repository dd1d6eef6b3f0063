"""The programs of one model at every batch, from a few traces.

At two batches a model makes the same calls; what differs are numbers: sizes, strides, shapes among the
arguments. Each is taken as a straight line through the two, so a program at any other batch costs no trace.
That is believed if the line meets a third trace, number by number; a model that does something else at
another batch is traced at each. A batch of 1 is often such a batch, and then is not in the family: a line
without it is taken until the answer is known, and is compared with a trace above that (`agrees`).

    traced   1 . 2 . . . . . . 32     4 is asked for: the line through 2 and 32 meets 1, and 4 is on it
    traced   1 . 2 . 4                there is no such line, but one through 2 and 4; 1 has other calls
    traced   1 . 2 . 4 . . . 14       the answer is batch 7: the line meets a trace above it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ...graphs.errors import MemplanError
from ...program.program import Call, Operation, Program, Ref, Setting, Storage, Value

_MOST_TRACES = 5
"""Number of traces after which no line is looked for any more."""
_FAR = 32
"""Batch that is traced in place of the third one asked for: most answers are below it, and need no other."""


T = TypeVar("T")
Number = Callable[[int, int], int]
"""A function of the numbers at the same place of two programs."""


class DiffersError(Exception):
    """Error: two programs are not of one family."""


@dataclass
class Family:
    """The programs of a model by batch, traced or interpolated.

    trace: makes the program at a batch.
    traced: programs that were traced.
    held: the two batches through which the line goes.
    met: the line has met a third trace.
    lineless: a line was given up.
    interpolated: programs that were taken from the line.
    """

    trace: Callable[[int], Program]
    traced: dict[int, Program] = field(default_factory=dict[int, Program])
    held: tuple[int, int] | None = None
    met: bool = False
    lineless: bool = False
    interpolated: dict[int, Program] = field(default_factory=dict[int, Program])
    _differing: tuple[tuple[int, int], _Differing] | None = None

    def program(self, batch: int) -> Program:
        """Return the program at a batch, traced or interpolated. Raises what `trace` raises."""
        if batch in self.traced:
            return self.traced[batch]
        if self.held is not None:
            try:
                if batch not in self.interpolated:
                    self.interpolated[batch] = self._on_line(*self.held, batch)
                return self.interpolated[batch]
            except DiffersError:
                self._give_up()
        else:
            self._try_far(batch)
            if self.held is not None:
                return self.program(batch)
        return self._trace(batch)

    def _try_far(self, batch: int) -> None:
        """Trace a batch far above, and take the line to it if there is one; else all is as it was.

        batch: the third one that is asked for; nothing is done for another.
        """
        if len(self.traced) != 2 or max(batch, *self.traced) >= _FAR or self.lineless:
            return
        with suppress(MemplanError):  # a model may have no such batch
            self.traced[_FAR] = self.trace(_FAR)
            self._look_for_line(sorted(self.traced))
        if self.held is None:
            self.traced.pop(_FAR, None)

    def agrees(self, batch: int) -> bool:
        """Tell whether traces agree with what was interpolated at this batch; if not, the line is given up.

        They do if the line has met a trace at this batch or above it. Otherwise one is made further up, so
        that answers that grow need few.
        """
        if self.held is None or (self.met and batch <= max(self.traced)) or not self.interpolated:
            return True
        above = min(2 * batch, max(self.interpolated))
        if above <= max(self.traced):  # the line may have been made of that trace
            above = max(self.interpolated)
        taken = self.program(above)
        # Both are needed: _trace replaces what was interpolated.
        if same(taken, self._trace(above)):
            self.met = True
            return True
        self._give_up()
        return False

    def _give_up(self) -> None:
        self.held, self.lineless = None, True
        self.interpolated.clear()

    def _trace(self, batch: int) -> Program:
        self.traced[batch] = self.trace(batch)
        self.interpolated.pop(batch, None)
        if not (self.held or self.lineless) and 3 <= len(self.traced) <= _MOST_TRACES:
            self._look_for_line(sorted(self.traced)[-3:])
        return self.traced[batch]

    def _look_for_line(self, batches: list[int]) -> None:
        """Take the line through the last two batches if it meets the third, or that is 1, of other calls."""
        first, low, high = batches
        third = self.traced[first]
        try:
            self.met = same(self._on_line(low, high, first), third)
        except DiffersError:
            return
        if self.met or (first == 1 and not _same_calls(third, self.traced[low])):
            self.held = low, high

    def line(self, batch: int) -> tuple[int, int]:
        """Return the ends of the line that a batch is on; the batch twice if it is on none.

        Traces, as `program` does, until that is known.
        """
        if batch not in self.traced:
            if self.held is None:
                self._try_far(batch)
            if self.held is None or not self._found_differing(*self.held).whole:
                self.program(batch)
        if self.held is not None and (batch in self.held or batch not in self.traced):
            return self.held
        return batch, batch

    def _on_line(self, low: int, high: int, batch: int) -> Program:
        differing = self._found_differing(low, high)
        return _combined(self.traced[low], self.traced[high], between(low, high, batch), differing)

    def _found_differing(self, low: int, high: int) -> _Differing:
        if self._differing is None or self._differing[0] != (low, high):
            found = _differing(self.traced[low], self.traced[high], high - low)
            self._differing = (low, high), found
        return self._differing[1]


def between(low: int, high: int, batch: int) -> Number:
    """Return a function of the numbers at two batches: the number at another one on their line.

    It raises DiffersError for one that is not whole: such a line is not the program's.
    """

    def number(one: int, other: int) -> int:
        steps, rest = divmod((other - one) * (batch - low), high - low)
        if rest:
            raise DiffersError
        return one + steps

    return number


def combined(one: Program, other: Program, number: Number, values: list[int]) -> Program:
    """Combine two programs in all operations, and in these values, and in no storages."""
    return _combined(one, other, number, _Differing([], values, [*range(len(one.operations))], whole=False))


def same(one: Program, other: Program) -> bool:
    """Tell whether all numbers that memory and time depend on are the same in two programs."""

    def equal(number: int, other_number: int) -> int:
        if number != other_number:
            raise DiffersError
        return number

    try:
        _combined(one, other, equal)
    except DiffersError:
        return False
    return True


def _same_calls(one: Program, other: Program) -> bool:
    """Tell whether two programs differ in numbers at most."""
    try:
        _combined(one, other, lambda number, _other: number)
    except DiffersError:
        return False
    return True


class _Differing(NamedTuple):
    """Indices of what has other numbers in one program than in another; all else is the same in both.

    whole: all batches above the lower one have whole numbers, none below 0.
    """

    storages: list[int]
    values: list[int]
    operations: list[int]
    whole: bool


def _differing(one: Program, other: Program, steps: int) -> _Differing:
    """Find what two programs differ in. steps: batches from the one to the other.

    Raises DiffersError if that is more than numbers.
    """
    differ, whole = list[bool](), True

    def note(number: int, other_number: int) -> int:
        nonlocal whole
        differ.append(number != other_number)
        whole = whole and other_number >= number and (other_number - number) % steps == 0
        return number

    def places(ones: Sequence[T], others: Sequence[T], combine: Callable[[T, T, Number], T]) -> list[int]:
        found = list[int]()
        for place, pair in enumerate(_pairs(ones, others)):
            differ.clear()
            combine(*pair, note)
            if any(differ):
                found.append(place)
        return found

    return _Differing(
        places(one.storages, other.storages, _storage),
        places(one.values, other.values, _value),
        places(one.operations, other.operations, _operation),
        whole,
    )


def _combined(one: Program, other: Program, number: Number, differing: _Differing | None = None) -> Program:
    """Combine two programs: their storages, values and operations.

    number: combines two whole numbers, equal ones to the same.
    differing: what to combine, None: all.
    """
    _check(one.device == other.device and one.returned == other.returned)
    storages, values, operations, _whole = differing or (None, None, None, False)
    return replace(
        one,
        storages=_each(one.storages, other.storages, _storage, number, storages),
        values=_each(one.values, other.values, _value, number, values),
        operations=_each(one.operations, other.operations, _operation, number, operations),
        # What was interpolated was never traced, so it has no fingerprint.
        fingerprint="",
    )


def _each(
    ones: Sequence[T],
    others: Sequence[T],
    combine: Callable[[T, T, Number], T],
    number: Number,
    places: Iterable[int] | None,
) -> list[T]:
    if places is None:
        return [combine(*pair, number) for pair in _pairs(ones, others)]
    made = list(ones)
    for place in places:
        made[place] = combine(ones[place], others[place], number)
    return made


def _storage(one: Storage, other: Storage, number: Number) -> Storage:
    if one == other:
        return one
    _check(one.kind == other.kind and one.layer == other.layer)
    size = number(one.bytes, other.bytes)
    _check(size >= 0)
    return one._replace(bytes=size)


def _value(one: Value, other: Value, number: Number) -> Value:
    if one == other:
        return one
    _check((one.storage, one.dtype, one.device) == (other.storage, other.dtype, other.device))
    shape, strides, offset = _argument(one[1:4], other[1:4], number)
    return one._replace(shape=shape, strides=strides, offset=offset)


def _operation(one: Operation, other: Operation, number: Number) -> Operation:
    _check(one._replace(name="", call=other.call) == other._replace(name=""))
    return one._replace(call=_call(one.call, other.call, number))


def _call(one: Call, other: Call, number: Number) -> Call:
    _check(one.target == other.target and (one.outputs, one.several) == (other.outputs, other.several))
    return replace(
        one,
        arguments=_argument(one.arguments, other.arguments, number),
        keywords=_argument(one.keywords, other.keywords, number),
    )


def _argument(one: Any, other: Any, number: Number) -> Any:
    """Combine two arguments. Floating-point numbers are the first's: nothing is larger or slower for them."""
    _check(type(one) is type(other))
    # Before int, of which bool is a subclass.
    if isinstance(one, Ref | bool):
        _check(one == other)
    elif isinstance(one, int):
        return number(one, other)
    elif isinstance(one, tuple | list):
        kind: Any = tuple if isinstance(one, tuple) else list
        return kind(_argument(*pair, number) for pair in _pairs(one, other))
    elif isinstance(one, Mapping):
        _check(list(one) == list(other))  # pyright: ignore[reportUnknownArgumentType]
        return {name: _argument(part, other[name], number) for name, part in one.items()}  # pyright: ignore[reportUnknownVariableType]
    elif not isinstance(one, float | complex | Setting):
        _check(one is other or one == other)
    return one


def _pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    _check(len(one) == len(other))
    return list(zip(one, other, strict=True))


def _check(condition: bool) -> None:
    if not condition:
        raise DiffersError
