"""The table of operators that split: element by element, what never splits, and PyTorch's tag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import torch
from in_pieces import Checked, Traced
from memplan.devices.calls.fused import dropout_mask
from memplan.profiling.splitting.operators import DENSE, POINTWISE, pattern
from memplan.profiling.splitting.rows import Along
from operator_cases import ACTIVATIONS, Cases, Drawn
from torch import Tensor
from torch.nn import functional

aten: Any = torch.ops.aten

CASES = Cases()

ALONG = Along(0, 1)


@CASES.covering("zeros_like", "ones_like", "full_like", "empty_like", "complex")
@CASES.covering("clone", "_to_copy", "masked_fill", "clamp_min", "clamp_max", "floor_divide", "rsub", "where")
def elements(drawn: Drawn) -> None:
    shape = drawn.shape()
    one, other = drawn.tensor(*shape), drawn.tensor(*(drawn.one_of(1, size) for size in shape))
    short = drawn.tensor(shape[-1])
    mask = other > 0
    drawn.back(one * other + short, one.clone(), one.to(torch.bfloat16).float() / (short.abs() + 1))
    drawn.back(one.masked_fill(mask, 0.5), torch.where(mask, one, short), one.clamp(-0.5), one.clamp(max=0.5))
    _ = aten.masked_fill.Tensor(one, mask, torch.tensor(2.0)), one // other, aten.rsub.Tensor(one, other)
    _ = (
        aten.clamp_min.default(one, 0.1),
        aten.clamp_max.default(one, 0.1),
        aten.where.ScalarOther(mask, other, 1.0),
    )
    _ = torch.zeros_like(one), torch.ones_like(one), torch.full_like(one, 3), torch.empty_like(one)
    torch.complex(one, one + 1)
    _ = one.pow(2), one.exp(), one.maximum(other), one.lerp(one, 0.5), one == other, one.max(other)


@CASES.covering(
    "gelu", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward", "threshold_backward"
)
@CASES.covering(
    "elu_backward", "leaky_relu_backward", "hardtanh_backward", "softplus_backward", "mish_backward"
)
@CASES.covering("log_sigmoid_forward", "log_sigmoid_backward", "hardswish_backward", "hardsigmoid_backward")
@CASES.covering(
    "softshrink_backward", "hardshrink_backward", "_prelu_kernel", "_prelu_kernel_backward", "hardswish"
)
def activations(drawn: Drawn) -> None:
    one = drawn.tensor(*drawn.shape(2))
    for name in ACTIVATIONS:
        drawn.back(getattr(functional, name)(one))
    drawn.back(functional.prelu(one, drawn.tensor(one.shape[1])), functional.gelu(one, approximate="tanh"))


test_pieces_make_what_the_whole_makes, test_they_do_at_many_shapes = CASES.tests()


def test_every_rule_has_a_case() -> None:
    assert {*POINTWISE, *DENSE} <= CASES.covered


def test_rows_of_whole_vectors_keep_their_bits() -> None:
    """Of curves too, along the first dimension."""
    with Checked(first=True) as checked:
        one = torch.randn(5, 64)
        for name in ACTIVATIONS:
            value = one.clone().requires_grad_()
            getattr(functional, name)(value).backward(one)
        _ = one.exp(), one.sigmoid() * one.tanh(), one.softmax(1), one.log_softmax(1), one.sum(1), one.mean(1)
        _ = one.logsumexp(1), functional.layer_norm(one, (64,)), one.var(1)
    assert checked.split["gelu_backward"]
    assert not checked.inexact.total()


def test_what_pytorch_tags_as_pointwise_is() -> None:
    """Each operator with the tag that takes tensors and numbers alone."""
    torch.manual_seed(0)
    one, other = torch.rand(2, 3) + 0.1, torch.rand(3) + 0.1
    with Checked(frozenset(dir(aten))) as checked:
        for target in tagged():
            given = [None if str(a.type) == "Tensor" else 2 for a in needed(target)]
            tensors = cycle((one, other))
            arguments = [next(tensors) if number is None else number for number in given]
            for kind in (torch.Tensor.float, lambda tensor: (tensor * 8 + 1).int()):
                with suppress(RuntimeError, NotImplementedError, IndexError):
                    target(*(kind(a) if isinstance(a, Tensor) else a for a in arguments))
    assert len(checked.split) > 100


def needed(target: Any) -> list[Any]:
    return [argument for argument in target._schema.arguments if not argument.has_default_value()]


def tagged() -> Iterator[Any]:
    for packet in (getattr(aten, name) for name in dir(aten)):
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            target = getattr(packet, overload)
            kinds = {str(argument.type) for argument in needed(target)}
            pure = torch.Tag.pointwise in target.tags and not target._schema.is_mutable
            if pure and kinds <= {"Tensor", "number", "float"}:
                yield target


def call(target: Any, *tensors: Tensor, arguments: Sequence[Any] = ()) -> Traced:
    return Traced(target, (*tensors, *arguments), {}, target(*tensors, *arguments))


def split(traced: Traced, at: int = 0, along: Along = ALONG) -> Any:
    return pattern(traced.call, traced.values, at, along)


def test_random_operators_do_not_split() -> None:
    one = torch.rand(4, 4)
    assert split(call(aten.bernoulli.default, one)) is None
    assert split(call(aten.native_dropout.default, one, arguments=(0.5, True))) is None
    assert split(call(dropout_mask, one, arguments=(0.5, 0.5))) is None


def test_changes_in_place_do_not_split() -> None:
    assert split(call(aten.mul_.Tensor, torch.rand(4, 4), torch.rand(4, 4))) is None


def test_what_couples_rows_does_not_split() -> None:
    one = torch.rand(4, 4)
    for target, arguments in (
        (aten._softmax.default, (0, False)),
        (aten.cumsum.default, (0,)),
        (aten.sort.default, (0,)),
        (aten.flip.default, ([0],)),
        (aten.roll.default, ([1], [0])),
        (aten.constant_pad_nd.default, ([0, 0, 1, 0],)),
        (aten.amax.default, ([0],)),
        (aten.linalg_vector_norm.default, ()),
        (aten.tril.default, ()),
    ):
        assert split(call(target, one, arguments=arguments)) is None, target
    numbers = torch.ones(4)
    training = (numbers, numbers, numbers, numbers, True, 0.1, 1e-5)
    assert split(call(aten._native_batch_norm_legit_functional.default, one, arguments=training)) is None


def test_what_is_read_as_rows_and_as_a_whole_does_not_split() -> None:
    one = torch.rand(4, 4)
    assert split(call(aten.mm.default, one, one)) is None
    picture = torch.rand(3, 3, 2, 2)
    numbers = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert split(call(aten.convolution.default, picture, picture, arguments=numbers)) is None


def test_no_rows_do_not_split() -> None:
    assert split(call(aten.exp.default, torch.rand(0, 4))) is None
