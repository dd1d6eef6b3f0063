"""Views, parts and new tensors in pieces, against the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from in_pieces import Checked, Traced
from memplan.profiling.splitting.operators import pattern
from memplan.profiling.splitting.rows import Along
from memplan.profiling.splitting.views import VIEWS
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()


@CASES.covering("view", "_unsafe_view", "reshape")
def reshapes(drawn: Drawn) -> None:
    a, b, c, d = (drawn.size(1, 4) for _ in range(4))
    one = torch.randn(a, b, c * d)
    for shape in ([a * b, c * d], [a, b, c, d], [a, b * c, d], [a * b, c, d], [a, 1, b, c * d], [-1]):
        for function in (aten.view.default, aten._unsafe_view.default):
            function(function(one, shape), drawn.one_of([a, b, c, d], [a * b * c, d], [a, b * c * d]))
    drawn.call(aten.reshape.default, one, [a * b, c * d])


@CASES.covering(
    "transpose", "permute", "squeeze", "unsqueeze", "expand", "select", "select_backward", "unbind"
)
@CASES.covering("t")
def moves(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape())
    drawn.back(drawn.tensor(drawn.size(), drawn.size()).t())
    drawn.back(one.transpose(drawn.dimension(one), drawn.dimension(one)))
    drawn.back(one.permute(drawn.one_of(*map(list, _orders(one.dim())))))
    more = one.unsqueeze(drawn.size(0, one.dim()))
    drawn.back(more.squeeze(drawn.dimension(more)))
    aten.squeeze.dims(more, [drawn.dimension(more)])
    drawn.back(more.expand(2, *(3 if size == 1 else -1 for size in more.shape)))
    dimension = drawn.dimension(one)
    drawn.back(one.select(dimension, one.shape[dimension] - 1))
    drawn.back(*one.unbind(dimension))


def _orders(count: int) -> Sequence[Sequence[int]]:
    return [range(count), range(count - 1, -1, -1), [*range(1, count), 0]]


@CASES.covering("slice", "slice_backward", "split", "split_with_sizes", "cat", "stack", "alias", "detach")
def parts(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape())
    dimension = drawn.dimension(one)
    size = one.shape[dimension]
    drawn.back(aten.slice(one, dimension, drawn.size(0, 1), drawn.one_of(size, 2**62), drawn.size(1, 2)))
    aten.slice(one, dimension, 0, 2**62)
    drawn.back(*one.split(2, dimension))
    drawn.back(*one.split([1, size - 1], dimension))
    drawn.back(torch.cat([one, drawn.tensor(*one.shape)], dimension))
    torch.cat([torch.empty(0), one], dimension)
    drawn.back(torch.stack([one, one * 2], drawn.size(-one.dim() - 1, one.dim())))
    aten.alias(one).detach()


def test_a_slice_splits_along_its_own_dimension() -> None:
    torch.manual_seed(0)
    checked = Checked()
    with checked:
        for begin, end in ((0, -1), (1, None), (3, 10), (11, None)):
            given = torch.randn(2, 12, 3)
            part = aten.slice(given, 1, begin, 2**62 if end is None else end)
            aten.slice_backward(part, [2, 12, 3], 1, begin, 2**62 if end is None else end, 1)
    assert checked.split["slice"] >= 4
    assert checked.split["slice_backward"] >= 4
    site = Traced(aten.slice.Tensor, (torch.randn(12, 3), 0, 1, 12), {}, torch.randn(11, 3))
    found = pattern(site.call, site.values, 0, Along(0, 1))
    assert found is not None
    assert found.outputs == (Along(0, 1, before=1),)


@CASES.covering("repeat", "flip", "roll", "constant_pad_nd", "unfold", "unfold_backward", "tril", "triu")
def rearranged(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape(2))
    dimension = drawn.dimension(one)
    drawn.back(one.repeat(*(drawn.size(1, 2) for _ in range(one.dim() + drawn.size(0, 1)))))
    drawn.back(one.flip(dimension), one.roll(drawn.size(0, 3), dimension), one.roll(1))
    drawn.back(functional.pad(one, [drawn.size(-1, 2) if size > 1 else 1 for size in (one.shape[-1], 1)]))
    functional.pad(one, (0, 0, 1, 0))
    drawn.back(one.unfold(dimension, 1, drawn.size(1, 2)))
    drawn.back(one.tril(drawn.size(-1, 1)), one.triu())


@CASES.covering(
    "new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "zeros", "ones", "full", "empty"
)
@CASES.covering("zeros_like", "ones_like", "full_like", "empty_like")
def created(drawn: Drawn) -> None:
    one, shape = drawn.tensor(*drawn.shape(), grad=False), drawn.shape()
    for function in (one.new_zeros, one.new_ones, one.new_empty, torch.zeros, torch.ones, torch.empty):
        function(shape)
    _ = one.new_full(shape, 2.0), torch.full(shape, 3.0)
    one.new_empty_strided(shape, torch.empty(shape).stride())
    _ = torch.zeros_like(one), torch.ones_like(one), torch.full_like(one, 3), torch.empty_like(one)


@CASES.covering("view_as_real", "view_as_complex", "_conj", "complex")
def of_two_numbers(drawn: Drawn) -> None:
    one = torch.randn(*drawn.shape(), 2)
    number = torch.view_as_complex(one)
    _ = torch.view_as_real(number * 2), number.conj(), torch.complex(one, one + 1)


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*VIEWS} <= CASES.covered
