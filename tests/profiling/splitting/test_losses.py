"""Losses in pieces, against the whole."""

from __future__ import annotations

from typing import Any

import torch
from memplan.profiling.splitting.losses import LOSSES
from operator_cases import Cases, Drawn
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()


@CASES.covering("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy")
@CASES.covering(
    "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward"
)
@CASES.covering("binary_cross_entropy_backward", "binary_cross_entropy_with_logits")
def losses(drawn: Drawn) -> None:
    shape = drawn.shape()
    one, target = drawn.tensor(*shape), torch.rand(shape)
    how = {"reduction": drawn.one_of("none", "mean", "sum")}
    drawn.back(
        functional.mse_loss(one, target, **how), functional.smooth_l1_loss(one, target, **how, beta=0.5)
    )
    drawn.back(
        functional.huber_loss(one, target, **how), functional.soft_margin_loss(one, target - 0.5, **how)
    )
    weight = drawn.one_of(None, torch.rand(shape), torch.rand(shape[-1]))
    drawn.back(functional.binary_cross_entropy(drawn.positive(*shape), target, weight, **how))
    logits = functional.binary_cross_entropy_with_logits
    drawn.back(
        logits(one, target, weight, **how), logits(one, target, pos_weight=torch.rand(shape[-1]), **how)
    )


@CASES.covering("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward")
def losses_of_classes(drawn: Drawn) -> None:
    classes, places = drawn.size(2, 4), drawn.one_of((), (2, 3), (1, 1), (3,))
    how = {"reduction": drawn.one_of("none", "mean", "sum"), "label_smoothing": drawn.one_of(0.0, 0.1)}
    scores = torch.randn(samples := drawn.size(), classes, *places, requires_grad=True)
    target = drawn.indices(classes, samples, *places)
    target[torch.rand(target.shape) < 0.2] = 99
    weight = drawn.one_of(None, torch.rand(classes))
    drawn.back(functional.cross_entropy(scores, target, weight, ignore_index=99, **how))
    drawn.back(functional.nll_loss(scores, target, weight, ignore_index=99, reduction=how["reduction"]))


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*LOSSES} <= CASES.covered
