"""Rules of operators that move dimensions, take parts along them, or make a tensor of a form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...program.program import Call
from .rows import Along, regrouped
from .rules import (
    WHOLE,
    Part,
    Pattern,
    Rule,
    Site,
    aligned,
    last,
    name_of,
    named,
    nothing,
    one_of,
    pointwise,
    sized,
)

aten: Any = torch.ops.aten

Moves = Callable[[Site, Along], Along | None]


def moved(forward: Moves, backward: Moves, *, resized: int | None = None) -> Rule:
    """Make the rule of a call that moves the dimensions of its first argument, the only tensor.

    forward, backward: return where the rows of the argument are in the results, and the reverse.
    resized: position of the argument that is the shape of the result.
    """

    def rule(site: Site, at: int, along: Along) -> Pattern | None:
        if len(site.reads) != 1:
            return None
        into, out = (backward(site, along), along) if site.makes(at) else (along, forward(site, along))
        if into is None or out is None:
            return None
        piece = None if resized is None else sized(site, resized, site.shape(site.made[0]), out)
        return Pattern({site.reads[0]: into}, site.all_outputs(out), piece=piece)

    return rule


def _both(move: Callable[[Site, Along, bool], Along | None], resized: int | None = None) -> Rule:
    """Make the rule of a call that moves dimensions. move: takes whether it goes back to the argument."""
    return moved(
        lambda site, along: move(site, along, False),
        lambda site, along: move(site, along, True),
        resized=resized,
    )


def _regroups(site: Site, along: Along, back: bool) -> Along | None:
    read, made = site.shape(site.reads[0]), site.shape(site.made[0])
    return regrouped(made, along, read) if back else regrouped(read, along, made)


def reshaped(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `view(input, shape)`: the rows stay the same, the shape of a piece has less of them.

    A piece is reshaped, with a copy if need be: others may have made it with other strides than the whole.
    """
    found = _regrouped(site, at, along)
    if (
        found is None
        or not isinstance(site.argument(1), list | tuple)
        or not isinstance(found.outputs[0], Along)
    ):
        return None  # a view as another dtype
    shape = site.shape(site.made[0])
    return found._replace(piece=sized(site, 1, shape, found.outputs[0], aten.reshape.default))


_regrouped = _both(_regroups)


def _order(site: Site) -> list[int]:
    """Return for each dimension of the result which one of the argument it is."""
    (read,) = site.reads
    count = len(site.shape(read))
    order = list(range(count))
    name = name_of(site.call)
    if name == "permute":
        return [dimension % count for dimension in site.argument(1)]
    one, other = (0, 1) if name == "t" else (site.dimension(1, read), site.dimension(2, read))
    if count > 1:
        order[one], order[other] = order[other], order[one]
    return order


def _permutes(site: Site, along: Along, back: bool) -> Along | None:
    order = _order(site)
    places = order[along.start : along.stop] if back else [order.index(d) for d in along.dimensions]
    moved = along._replace(start=places[0], stop=places[-1] + 1)
    return moved if places == list(moved.dimensions) else None  # else they are not neighbours any more


def squeezed(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `squeeze(input, dimensions)`; of those that a piece may have one index of, none is named."""
    gone, found = site.argument(1), _regrouped(site, at, along)
    if found is None or gone is None:
        return None
    (read,) = site.reads
    rows, count = found.inputs[read], len(site.shape(read))
    dimensions = [d % count for d in ((gone,) if isinstance(gone, int) else gone)]
    apart = isinstance(rows, Along) and not any(rows.start <= d < rows.stop for d in dimensions)
    return found if apart else None


def expanded(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `expand(input, sizes)`."""
    found = pointwise(site, at, along)
    if found is None or not isinstance(found.outputs[0], Along):
        return None
    return found._replace(piece=sized(site, 1, site.shape(site.made[0]), found.outputs[0]))


def inserts(along: Along, dimension: int) -> Along | None:
    """Return where rows are after a dimension was inserted here; None if it is between them."""
    if along.start < dimension < along.stop:
        return None
    return along.shifted(1) if along.start >= dimension else along


def drops(along: Along, dimension: int) -> Along | None:
    """Return where rows are once a dimension is gone; None if it is one of theirs."""
    if along.start <= dimension < along.stop:
        return None
    return along.shifted(-1) if dimension < along.start else along


def _selects(site: Site, along: Along, back: bool) -> Along | None:
    dimension = site.dimension(1, site.reads[0])
    return inserts(along, dimension) if back else drops(along, dimension)


def _selects_backward(site: Site, along: Along, back: bool) -> Along | None:
    dimension = site.dimension(2, site.made[0])
    return drops(along, dimension) if back else inserts(along, dimension)


def _unbinds(site: Site, along: Along, back: bool) -> Along | None:
    dimension = site.named("dim") % len(site.shape(site.reads[0]))
    return inserts(along, dimension) if back else drops(along, dimension)


def stacked(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `stack(tensors, dimension)`."""
    (out,) = site.made
    dimension = site.dimension(1, out)
    into, there = (drops(along, dimension), along) if site.makes(at) else (along, inserts(along, dimension))
    return None if into is None or there is None else Pattern(dict.fromkeys(site.reads, into), (there,))


def _repeats(site: Site, along: Along, back: bool) -> Along | None:
    (read,) = site.reads
    times = site.argument(1)
    new = len(times) - len(site.shape(read))
    out = along if back else along.shifted(new)
    once = all(times[dimension] == 1 for dimension in out.dimensions)
    return (out.shifted(-new) if back else out) if once and out.start >= new else None


def joined(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `cat(tensors, dimension)`, which takes tensors of shape `[0]` for any rank."""
    (out,) = site.made
    have = {value for value in site.reads if site.shape(value) != (0,)} or {*site.reads}
    sizes = {site.shape(value)[along.start : along.stop] for value in (*have, out)}
    if along.start <= site.dimension(1, out) < along.stop or len(sizes) > 1:
        return None
    inputs: dict[int, Part] = {value: along if value in have else WHOLE for value in site.reads}
    return one_of(site, at, along, [(inputs, [along])])


def _sliced(site: Site) -> Sequence[int]:
    """Return the dimension of `slice`; none if all of it is taken, as by `x[:]`."""
    (read,) = site.reads
    dimension = site.dimension(1, read)
    start, step = site.argument(2), site.argument(4, 1)
    all_of_it = site.shape(site.made[0])[dimension] == site.shape(read)[dimension]
    return [] if all_of_it and start in (None, 0) and step == 1 else [dimension]


_OTHER_DIMENSIONS = aligned(_sliced)
_OTHER_DIMENSIONS_BACKWARD = aligned(lambda site: [site.dimension(2, site.made[0])], resized=1)


def sliced(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `slice(input, dimension, start, end, step)`: along the dimension the result has fewer rows."""
    if (found := _OTHER_DIMENSIONS(site, at, along)) is not None:
        return found
    parts = _of_slice(site, at, along, site.reads[0], first=1)
    if parts is None:
        return None

    def cut(offset: int, part: int, _whole: int) -> Call:
        return site.with_arguments({1: site.argument(1, 0), 2: offset, 3: offset + part, 4: 1})

    return Pattern({site.reads[0]: parts[0]}, (parts[1],), cut=cut)


def sliced_backward(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `slice_backward(gradient, sizes, dimension, start, end, step)`, of which the rest is zeros."""
    if (found := _OTHER_DIMENSIONS_BACKWARD(site, at, along)) is not None:
        return found
    parts = _of_slice(site, at, along, site.made[0], first=2)
    if parts is None:
        return None

    def cut(offset: int, part: int, whole: int) -> Call:
        sizes = parts[0].block(site.shape(site.made[0]), whole)
        return site.with_arguments({1: sizes, 3: offset, 4: offset + part, 5: 1})

    return Pattern({site.reads[0]: parts[1]}, (parts[0],), cut=cut)


def _of_slice(site: Site, at: int, along: Along, whole: int, first: int) -> tuple[Along, Along] | None:
    """Return where rows along the sliced dimension are in the larger tensor and in its slice.

    whole: the larger one. first: position of the argument that is the dimension, before start, end and step.
    """
    dimension = site.dimension(first, whole)
    size = site.shape(whole)[dimension]
    start, end, step = slice(*(site.argument(first + place) for place in (1, 2, 3))).indices(size)
    only = along.dimensions == range(dimension, dimension + 1) and along.inner == 1
    if not only or step != 1 or end <= start or site.call.keywords:
        return None
    if at == whole:
        return along, along.moved(start, size - end)
    return along.moved(-start, end - size), along


def _padded(site: Site) -> Sequence[int]:
    """Return the dimensions that get more. Of the pairs of numbers the first is for the last dimension."""
    pads, rank = site.argument(1), len(site.shape(site.reads[0]))
    return [rank - 1 - place // 2 for place, pad in enumerate(pads) if pad != 0]


def created(place: int, target: Any = None) -> Rule:
    """Make the rule of an operator that makes a tensor of a size, whatever it reads. place: of the size."""

    def rule(site: Site, at: int, along: Along) -> Pattern | None:
        if not site.makes(at):
            return None
        whole: dict[int, Part] = dict.fromkeys(site.reads, WHOLE)
        return Pattern(whole, (along,), piece=sized(site, place, site.shape(at), along, target))

    return rule


def new_empty(like: torch.Tensor, size: list[int], _strides: object, **keywords: Any) -> torch.Tensor:
    return like.new_empty(size, **keywords)


same = aligned(nothing)

VIEWS: dict[str, Rule] = {
    **dict.fromkeys(("view", "unsafe_view", "reshape"), reshaped),
    **dict.fromkeys(("t", "transpose", "permute"), _both(_permutes)),
    **dict.fromkeys(("detach", "alias", "view_as_real", "view_as_complex", "conj"), same),
    "squeeze": squeezed,
    "unsqueeze": _regrouped,
    "expand": expanded,
    "select": _both(_selects),
    "select_backward": _both(_selects_backward, resized=1),
    "unbind": _both(_unbinds),
    "slice": sliced,
    "slice_backward": sliced_backward,
    **dict.fromkeys(("split", "split_with_sizes"), aligned(named())),
    "unfold": aligned(named("dimension")),
    "unfold_backward": aligned(lambda site: [site.dimension(2, site.made[0])], resized=1),
    "cat": joined,
    "stack": stacked,
    "repeat": _both(_repeats),
    **dict.fromkeys(("tril", "triu"), aligned(last(2))),
    "constant_pad_nd": aligned(_padded),
    **dict.fromkeys(("flip", "roll"), aligned(named("dims"))),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), created(1)),
    "new_empty_strided": created(1, new_empty),
    **dict.fromkeys(("zeros", "ones", "full", "empty"), created(0)),
}
