"""Reductions, scans and norms in pieces, against the whole."""

from __future__ import annotations

from typing import Any

import torch
from memplan.profiling.splitting.reductions import REDUCTIONS
from operator_cases import Cases, Drawn
from torch._decomp import get_decompositions
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()

_library = torch.library.Library("aten", "IMPL")
for _name in ("_fused_rms_norm", "_fused_rms_norm_backward"):
    _operator = getattr(aten, _name).default
    _library.impl(_name, get_decompositions([_operator])[_operator], "CPU")


@CASES.covering(
    "sum", "nansum", "count_nonzero", "mean", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin"
)
@CASES.covering("median", "all", "any", "prod", "logsumexp", "linalg_vector_norm", "kthvalue")
@CASES.covering("var", "std", "var_mean", "std_mean")
def reductions(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape(2))
    dimension, kept = drawn.dimension(one), drawn.one_of(False, True)
    several = sorted({dimension % one.dim(), drawn.size(0, one.dim() - 1)})
    drawn.back(one.sum(), one.mean(), one.sum(several, kept), one.mean(several, kept), one.sum(dimension))
    drawn.back(one.amax(several, kept), one.logsumexp(several, kept), one.nansum(several, kept), one.sum([]))
    drawn.back(torch.linalg.vector_norm(one, drawn.one_of(1, 2), several, kept), one.norm())
    drawn.back(
        one.var(several, keepdim=kept), one.std(dimension), *torch.var_mean(one, several, keepdim=kept)
    )
    _ = (
        torch.std_mean(one, several, keepdim=kept),
        one.amin(dimension),
        one.prod(),
        one.argmin(dimension),
        one.mean([]),
    )
    drawn.back(one.max(dimension, kept).values, one.min(dimension).values, one.prod(dimension, kept))
    drawn.back(
        *torch.aminmax(one, dim=dimension), one.median(dimension).values, one.kthvalue(1, dimension)[0]
    )
    _ = (
        one.argmax(dimension, kept),
        (one > 0).all(dimension),
        (one > 0).any(dimension),
        (one > 0).sum(dimension),
    )
    _ = torch.count_nonzero(one, dim=dimension), one.max(), one.argmax(), one.to(torch.bfloat16).mean(several)
    _ = aten.any.dims(one > 0, several), aten.all.dims(one > 0, several)


@CASES.covering("glu", "glu_backward")
@CASES.covering("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "topk")
@CASES.covering(
    "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data"
)
def along_one(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape(2))
    dimension = drawn.dimension(one)
    drawn.back(one.cumsum(dimension), one.cumprod(dimension), one.logcumsumexp(dimension))
    drawn.back(
        one.cummax(dimension)[0], one.cummin(dimension)[0], torch.sort(one, dim=dimension, stable=True)[0]
    )
    drawn.back(one.sort(dimension)[0], one.topk(1, dimension)[0])
    drawn.back(functional.glu(torch.cat([one, one + 1], dimension), dimension))
    drawn.back(one.softmax(dimension), one.log_softmax(dimension))
    drawn.back(one.bfloat16().log_softmax(dimension), aten._safe_softmax(one, dimension))


@CASES.covering(
    "native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"
)
def layer_norms(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape(2))
    over = one.shape[drawn.size(1, one.dim() - 1) :]
    weight = drawn.one_of(None, drawn.tensor(*over))
    bias = drawn.one_of(None, drawn.tensor(*over))
    drawn.back(functional.layer_norm(one, over, weight, bias))
    given = [*one.shape[: one.dim() - len(over)]]
    made, scale = aten._fused_rms_norm(one, over, weight, 1e-5)
    gradient = drawn.tensor(*one.shape)
    aten._fused_rms_norm_backward(gradient, one, over, scale, weight, [True, weight is not None])
    assert list(made.shape[: len(given)]) == given


@CASES.covering("native_group_norm", "native_group_norm_backward")
def group_norms(drawn: Drawn) -> None:
    groups = drawn.size(1, 2)
    channels = groups * drawn.size(1, 2)
    one = drawn.tensor(drawn.size(), channels, 2, *drawn.shape(0, 1))
    weight = drawn.one_of(None, drawn.tensor(channels))
    drawn.back(functional.group_norm(one, groups, weight, weight))


@CASES.covering("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit_functional")
@CASES.covering("_native_batch_norm_legit_no_training")
def batch_norms(drawn: Drawn) -> None:
    channels = drawn.size()
    one = drawn.tensor(drawn.size(2), channels, *drawn.shape(0, 2))
    weight = drawn.one_of(None, drawn.tensor(channels))
    statistics = torch.randn(channels), torch.rand(channels) + 0.5
    training = drawn.one_of(False, True)
    drawn.back(functional.batch_norm(one, *statistics, weight, weight, training))
    drawn.back(functional.batch_norm(one, None, None, weight, weight, True))
    legit = (one.detach(), weight, weight, *statistics)
    aten._native_batch_norm_legit_functional(*legit, training, 0.1, 1e-5)
    aten._native_batch_norm_legit_no_training(*legit, 0.1, 1e-5)


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*REDUCTIONS} <= CASES.covered
