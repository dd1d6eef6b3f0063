"""Matrix products in pieces, against the whole."""

from __future__ import annotations

from typing import Any

import torch
from memplan.profiling.splitting.products import PRODUCTS
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()


@CASES.covering("mm", "addmm", "t")
def linear(drawn: Drawn) -> None:
    m, k, n = drawn.size(), drawn.size(), drawn.size()
    bias = drawn.one_of(None, drawn.tensor(n))
    drawn.back(functional.linear(drawn.tensor(m, k), drawn.tensor(n, k), bias))
    aten.addmm(drawn.tensor(m, n), drawn.tensor(m, k), drawn.tensor(k, n), beta=0.5, alpha=2)


@CASES.covering("bmm", "baddbmm")
def batched_products(drawn: Drawn) -> None:
    b, m, k, n = (drawn.size() for _ in range(4))
    drawn.back(torch.bmm(drawn.tensor(b, m, k), drawn.tensor(b, k, n)))
    shape = drawn.one_of((b, m, n), (1, n), (b, 1, n))
    aten.baddbmm(drawn.tensor(*shape), drawn.tensor(b, m, k), drawn.tensor(b, k, n), alpha=0.5)


@CASES.covering("mv", "dot")
def products_with_vectors(drawn: Drawn) -> None:
    m, k = drawn.size(), drawn.size()
    torch.mv(drawn.tensor(m, k), drawn.tensor(k))
    torch.dot(drawn.tensor(k), drawn.tensor(k))


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*PRODUCTS} <= CASES.covered
