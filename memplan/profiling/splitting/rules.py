"""Along what an operator splits: which rows of its results come from which rows of its inputs.

A rule is given one tensor of a call with its rows, and says where the same rows are in the others:

    along    the rows of the tensor are those of the piece
    SUM      each piece makes a term, and the tensor is the sum of them
    WHOLE    each piece needs, or makes, the whole tensor

What no rule knows does not split. The table itself is in operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...program.program import Call, Ref, Value, refs, values_read
from ...torch_support.torch_operators import OpOverload, schema_of
from .rows import Along, Shape


class Role(Enum):
    """Role of a tensor that does not lie along the rows."""

    SUM = "sum"
    WHOLE = "whole"


SUM, WHOLE = Role.SUM, Role.WHOLE
Part = Along | Role

Accumulate = Callable[..., Tensor]
"""Adds a term to the first argument, which it changes: the arguments after it are those of the call."""


class Pattern(NamedTuple):
    """Pattern of a call that splits: the rows in each of its tensors.

    inputs: per tensor that it reads where the rows are in it, or WHOLE.
    outputs: of each result.
    piece: makes the call of a piece, of the call and the number of its rows; None if it is the same call.
    cut: makes the call of a piece whose result has other rows than its input, as a slice does: of the place
        of the slice in the larger tensor's rows, of the slice's rows, and of the larger tensor's.
    accumulate: makes and adds a term at once, for calls with one result; None: it is made first.
    forms: inputs of which only the form is read.
    before: makes results that are WHOLE from whole inputs, by their position among the results: pieces take
        them as given. The inputs that it reads must be there before the first piece.
    """

    inputs: Mapping[int, Part]
    outputs: tuple[Part, ...]
    piece: Callable[[int], Call] | None = None
    accumulate: Accumulate | None = None
    before: Mapping[int, Call] | None = None
    forms: frozenset[int] = frozenset()
    cut: Callable[[int, int, int], Call] | None = None

    def moved(self, before: int, after: int) -> Pattern:
        """Return the same in a region with so many more rows before and after."""

        def part(one: Part) -> Part:
            return one.moved(before, after) if isinstance(one, Along) else one

        inputs = {value: part(one) for value, one in self.inputs.items()}
        return self._replace(inputs=inputs, outputs=tuple(map(part, self.outputs)))

    def in_piece(self, call: Call, forms: Sequence[Value], first: int, rows: int) -> Call:
        """Return the call of a piece. forms: of the values. first, rows: of the region."""
        if self.piece is None and self.cut is None:
            return call
        parts = (*self.inputs.items(), *zip(call.outputs, self.outputs, strict=True))
        spans = [
            (part.before + (span := part.span(forms[value].shape, first, rows)).start, len(span))
            for value, part in parts
            if value is not None and isinstance(part, Along)
        ]
        if self.cut is None:
            assert self.piece is not None
            # All of its tensors have the same rows.
            return self.piece(spans[0][1]) if spans else self.piece(rows)
        # The larger tensor begins first or, at the same row, has more of them.
        (whole, size), (part, count) = sorted(spans, key=lambda span: (span[0], -span[1]))
        return self.cut(part - whole, count, size)


class Site:
    """A call in its program, as rules see it."""

    def __init__(self, call: Call, values: Sequence[Value]) -> None:
        self.call = call
        self._values = values

    def shape(self, value: int) -> tuple[int, ...]:
        return self._values[value].shape

    def dtype(self, value: int) -> torch.dtype:
        return self._values[value].dtype

    def memory_format(self, value: int) -> torch.memory_format | None:
        """Return in which order the elements lie without gaps; None if they don't."""
        form = self._values[value]
        like = torch.empty_strided(form.shape, form.strides, device="meta")
        orders = (
            torch.contiguous_format,
            *({4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(like.dim(), [])),
        )
        return next((one for one in orders if like.is_contiguous(memory_format=one)), None)

    @property
    def reads(self) -> tuple[int, ...]:
        return values_read(self.call)

    def read(self, place: int) -> int | None:
        """Return the value of an argument by its position; None if there is none, or it is no tensor."""
        given = self.call.arguments[place] if place < len(self.call.arguments) else None
        return given.value if isinstance(given, Ref) else None

    def several(self, place: int) -> tuple[int, ...]:
        return tuple(refs(self.call.arguments[place]))

    def argument(self, place: int, default: Any = None) -> Any:
        return self.call.arguments[place] if place < len(self.call.arguments) else default

    def named(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name in the schema, or the schema's default.

        default: for an operator that has no such argument.
        """
        for place, argument in enumerate(schema_of(self.call.target).arguments):
            if argument.name == name:
                left = argument.default_value if argument.has_default_value() else default
                return self.call.keywords.get(name, self.argument(place, left))
        return default

    def makes(self, value: int) -> bool:
        return value in self.call.outputs

    @property
    def made(self) -> tuple[int, ...]:
        """Return the results that somebody reads."""
        return tuple(value for value in self.call.outputs if value is not None)

    def dimension(self, place: int, of: int, default: int = 0) -> int:
        """Return an argument as the number of a dimension of a value."""
        return self.argument(place, default) % max(1, len(self.shape(of)))

    def all_outputs(self, part: Part) -> tuple[Part, ...]:
        return (part,) * len(self.call.outputs)

    def called(self, target: Callable[..., Any], *first: Any) -> Call:
        """Return the call with another target, which takes these arguments before those of the call."""
        call = self.call
        return Call(target, (*first, *call.arguments), call.keywords, call.outputs, call.several)

    def each(self, target: Callable[..., Any], *first: Any) -> Callable[[int], Call]:
        """Make a call that is the same for each piece: `called`."""
        call = self.called(target, *first)
        return lambda _rows: call

    def counted(self, place: int) -> Callable[[int], Call]:
        """Make the call of a piece that has its number of rows as an argument. place: of the argument."""
        return lambda rows: self.with_arguments({place: rows})

    def with_arguments(self, places: Mapping[int, Any], target: Any = None) -> Call:
        """Return the call with other arguments at these places."""
        given = [*self.call.arguments, *[None] * (max(places) + 1 - len(self.call.arguments))]
        for place, argument in places.items():
            given[place] = argument
        call = self.call
        return Call(target or call.target, tuple(given), call.keywords, call.outputs, call.several)


def name_of(call: Call) -> str | None:
    """Return the operator's name; None for one that is not PyTorch's."""
    target = call.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    return target.overloadpacket.__name__


Rule = Callable[[Site, int, Along], Pattern | None]
"""Function of a call, one of its tensors and the rows there: how the call splits, None if it does not."""


def pointwise(site: Site, at: int, along: Along) -> Pattern | None:
    """Split a call whose results have all one shape, to which its inputs are broadcast."""
    made = site.made
    if not made or len({site.shape(value) for value in made}) > 1:
        return None
    shape = site.shape(made[0])
    # Broadcasting aligns last dimensions.
    out = along if site.makes(at) else along.shifted(len(shape) - len(site.shape(at)))
    inputs = all_broadcast(site, shape, out)
    if inputs is None or (not site.makes(at) and inputs[at] is WHOLE):
        return None
    return Pattern(inputs, site.all_outputs(out))


def all_broadcast(site: Site, shape: Shape, along: Along) -> dict[int, Part] | None:
    """Return where the rows of a shape are in all inputs, broadcast to it; None if one has some of them."""
    found: dict[int, Part] = {}
    for value in site.reads:
        if (part := broadcast(site.shape(value), shape, along)) is None:
            return None
        found[value] = part
    return found


def broadcast(shape: Shape, to: Shape, along: Along) -> Part | None:
    """Return where the rows of a shape are in one that is broadcast to it; None if it has some of them."""
    own = along.shifted(len(shape) - len(to))
    there = shape[max(own.start, 0) : max(own.stop, 0)]
    if own.start >= 0 and tuple(there) == tuple(to[along.start : along.stop]):
        return own
    # One index for all rows: each piece reads it.
    return WHOLE if all(size == 1 for size in there) else None


Coupled = Callable[[Site], Sequence[int] | None]
"""Returns the dimensions along which a call's rows know of each other; None if they do along each."""


def aligned(
    coupled: Coupled,
    given: Sequence[int] | None = None,
    *,
    sums: Sequence[int] = (),
    resized: int | None = None,
    packed: bool = False,
) -> Rule:
    """Make the rule of an operator whose rows are along the same dimensions of its tensors.

    given: positions of the arguments that have rows; others are whole. None: all have rows.
    sums: positions of the results that are summed over rows.
    resized: position of the argument that is the shape of the first result.
    packed: pieces are given without gaps, as the whole was. Some kernels read past them: `layer_norm`'s
        backward takes its means for contiguous, `adaptive_max_pool3d`'s its indices. Others refuse them.
    """

    def rule(site: Site, at: int, along: Along) -> Pattern | None:
        apart = coupled(site)
        if apart is None or any(along.start <= dimension < along.stop for dimension in apart):
            return None
        places = range(len(site.call.arguments)) if given is None else given
        have = {
            value for place in places if place < len(site.call.arguments) for value in site.several(place)
        }
        others = [a for place, a in enumerate(site.call.arguments) if place not in places]
        # The same tensor cannot be cut and whole in one call.
        if not have.isdisjoint((*refs(others), *refs(site.call.keywords))):
            return None
        results = [v for place, v in enumerate(site.call.outputs) if place not in sums and v is not None]
        sizes = {site.shape(value)[along.start : along.stop] for value in (*have, *results)}
        if at not in (*have, *results) or len(sizes) > 1:
            return None
        inputs: dict[int, Part] = {value: along if value in have else WHOLE for value in site.reads}
        outputs = tuple(SUM if place in sums else along for place in range(len(site.call.outputs)))
        piece = None if resized is None else sized(site, resized, site.shape(site.made[0]), along)
        found = Pattern(inputs, outputs, piece=piece)
        # Along the first dimension a block of a dense tensor is dense.
        return without_gaps(site, found) if packed and along.start else found

    return rule


def nothing(_site: Site) -> Sequence[int]:
    return ()


def last(count: int) -> Coupled:
    """Say that the last dimensions of the first argument are coupled."""

    def coupled(site: Site) -> Sequence[int]:
        rank = len(site.shape(site.reads[0]))
        return range(max(0, rank - count), rank)

    return coupled


def after(count: int) -> Coupled:
    """Say that all dimensions but the first are coupled. count: of the first ones."""
    return lambda site: range(count, max(len(site.shape(value)) for value in site.reads))


def named(name: str = "dim") -> Coupled:
    """Say that dimensions are coupled which an argument of this name lists, or is. None if it lists none."""

    def coupled(site: Site) -> Sequence[int] | None:
        given = site.named(name)
        listed = [given] if isinstance(given, int) else given
        rank = max(1, len(site.shape(site.reads[0])))
        return [dimension % rank for dimension in listed] if listed else None

    return coupled


def sized(site: Site, place: int, shape: Shape, along: Along, target: Any = None) -> Callable[[int], Call]:
    """Make the call of a piece that has the size of its result as an argument. place: of the argument."""

    def piece(rows: int) -> Call:
        block = along.block(shape, rows)
        assert block is not None
        return site.with_arguments({place: list(block)}, target)

    return piece


def without_gaps(site: Site, found: Pattern) -> Pattern:
    """Give each piece without gaps between its elements what has none as a whole."""
    formats = tuple(
        site.memory_format(one.value) if isinstance(one, Ref) else None for one in site.call.arguments
    )

    def piece(rows: int) -> Call:
        call = site.call if found.piece is None else found.piece(rows)
        arguments = formats, call.target, *call.arguments
        return Call(called_without_gaps, arguments, call.keywords, call.outputs, call.several)

    return found._replace(piece=piece)


def called_without_gaps(
    formats: Sequence[torch.memory_format | None], target: Callable[..., Any], *given: Any, **keywords: Any
) -> Any:
    """Call the target. formats: of the arguments, None for one to pass as it is."""
    dense = (
        one if form is None else one.contiguous(memory_format=form)
        for one, form in zip(given, formats, strict=True)
    )
    return target(*dense, **keywords)


def one_of(
    site: Site, at: int, along: Along, ways: Sequence[tuple[Mapping[int, Part], Sequence[Part]]]
) -> Pattern | None:
    """Return the first of several ways to split that has these rows in this tensor.

    ways: per way the parts of the inputs and of the results.
    """
    for inputs, outputs in ways:
        known = {**dict(zip(site.call.outputs, outputs, strict=True)), **inputs}
        part = known.get(at)
        if isinstance(part, Along) and part.dimensions == along.dimensions:
            found = {value: _like(inputs.get(value, WHOLE), along) for value in site.reads}
            return Pattern(found, tuple(_like(each, along) for each in outputs))
    return None


def _like(part: Part, along: Along) -> Part:
    """Return a part of a way as rows like those asked for."""
    return along._replace(start=part.start, stop=part.stop) if isinstance(part, Along) else part


def share_of_mean(target: Callable[..., Tensor], share: float, *arguments: Any, **keywords: Any) -> Tensor:
    """Return a piece's term of the mean over all pieces. share: of all elements that are in the piece.

    Not its sum over their number: in 16 bits a sum may be infinite where the mean is not.
    """
    return target(*arguments, **keywords).mul_(share)
