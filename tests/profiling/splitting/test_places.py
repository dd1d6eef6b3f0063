"""Lookups, gathers and scatters in pieces, against the whole."""

from __future__ import annotations

from typing import Any

import torch
from memplan.devices.calls import scatters
from memplan.devices.calls.in_layout import in_layout
from memplan.profiling.splitting.own import OWN
from memplan.profiling.splitting.places import PLACES
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()


@CASES.covering(
    "embedding",
    "embedding_dense_backward",
    "index",
    "index_put",
    "index_select",
    "index_add",
    "bucketize",
    "isin",
)
def lookups(drawn: Drawn) -> None:
    weight = drawn.tensor(5, drawn.size())
    indices = drawn.indices(5, *drawn.shape())
    drawn.back(functional.embedding(indices, weight, drawn.one_of(None, 2)))
    one = drawn.tensor(*drawn.shape())
    dimension = drawn.dimension(one) % one.dim()
    size = one.shape[dimension]
    there = drawn.indices(size, drawn.size())
    drawn.back(one[(*[slice(None)] * dimension, drawn.indices(size, *drawn.shape(1, 2)))], one[one > 0])
    rows, columns = drawn.indices(3, *drawn.shape(1, 2)), drawn.indices(3, drawn.one_of(1, 2), 1)
    if columns.shape[0] == 1 or rows.dim() == 1 or rows.shape[0] in (1, 2):
        both = drawn.tensor(3, 3, 2)
        drawn.back(both[rows, columns], both.transpose(0, 2)[:, rows, columns], both[rows, :, columns % 2])
    drawn.back(one.index_select(dimension, there))
    drawn.back(one.index_add(dimension, there, one.index_select(dimension, there) * 2))
    _ = torch.bucketize(one, torch.tensor([-1.0, 0.0, 1.0])), torch.isin(indices, torch.tensor([1, 2]))


@CASES.covering("gather", "scatter", "scatter_add", "scatter_reduce", "slice_scatter", "select_scatter")
@CASES.covering("copy", "in_form")
def gathers(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape())
    dimension = drawn.dimension(one)
    size = one.shape[dimension]
    there = [part if place != dimension % one.dim() else drawn.size() for place, part in enumerate(one.shape)]
    less = [drawn.size(1, part) for part in there]
    for shape in (there, less):
        if shape[dimension] <= size or shape is there:
            drawn.back(one.gather(dimension, drawn.indices(size, *shape)))
    torch.gather(one, dimension, torch.zeros([2] * one.dim(), dtype=torch.long)) if min(
        one.shape
    ) > 1 else None
    source = drawn.tensor(*one.shape)
    places = drawn.indices(size, *one.shape)
    where = dimension, places, source
    drawn.back(one.scatter(dimension, places, 0.5), one.scatter_add(*where), one.scatter(*where))
    drawn.back(one.scatter_reduce(*where, "amax"))
    part, row, source = (
        one.narrow(dimension, 0, 1).detach(),
        one.select(dimension, 0).detach(),
        source.detach(),
    )
    drawn.call(aten.slice_scatter.default, source, part, dimension, 0, 1)
    drawn.call(scatters.slice_scatter, source, part, dimension, 0, 1)
    drawn.call(aten.select_scatter.default, source, row, dimension, 0)
    drawn.call(scatters.select_scatter, source, row, dimension, 0)
    drawn.call(scatters.copy, one.detach(), source.bfloat16())
    wide = drawn.tensor(2, *one.shape, grad=False)
    drawn.call(scatters.in_form, source, wide.shape, wide.stride())
    drawn.call(in_layout(aten.mul_.Tensor, [one]), one.detach(), source)
    drawn.call(in_layout(aten.cumsum_.default, [one]), one.detach(), 0)


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*PLACES} <= CASES.covered
    assert {function.__name__ for function in OWN} <= CASES.covered
