"""The GPUs that a trace holds for: all those with the same answers, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memplan.devices.absent_gpu.absent_gpu import absent_gpu
from memplan.devices.absent_gpu.capability import Capability
from memplan.devices.absent_gpu.questions import Questions, all_kinds
from memplan.model.iteration import Iteration
from memplan.profiling.profile.estimate import trace_for
from memplan.profiling.profile.fake_build import fake_build
from memplan.profiling.profile.family import same
from memplan.tracing.trace import trace
from torch import Tensor, nn
from torch.nn import functional

AMPERE, HOPPER, TURING = Capability(8, 6), Capability(9, 0), Capability(7, 5)


class Model(nn.Module):
    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(1, 2, 16, 64)), forward

    def forward(self) -> Tensor:
        return self.function(self.weight).float().sum()


def attended(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        given = (x * 1).to(dtype)
        return functional.scaled_dot_product_attention(given, given, given)

    return forward


def convolved(x: Tensor) -> Tensor:
    last = (x * 1).bfloat16().to(memory_format=torch.channels_last)
    return functional.conv2d(last, torch.ones(4, 2, 3, 3, dtype=torch.bfloat16, device=x.device))


def by_capability(x: Tensor) -> Tensor:
    return x * 2 if torch.cuda.get_device_capability()[0] >= 9 else x


def by_properties(x: Tensor) -> Tensor:
    return x * 2 if torch.cuda.get_device_properties(0).major >= 9 else x


def by_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16() if torch.cuda.is_bf16_supported(including_emulation=False) else x


FORWARDS = {
    "attention in float32": attended(torch.float32),
    "attention in bfloat16": attended(torch.bfloat16),
    "convolution in bfloat16": convolved,
    "capability": by_capability,
    "properties": by_properties,
    "bfloat16": by_bfloat16,
    "nothing": torch.tanh,
}


@pytest.mark.parametrize("name", FORWARDS)
def test_a_trace_holds_for_gpus_whose_own_trace_is_the_same(name: str) -> None:
    def build() -> Iteration:
        return Iteration(Model(FORWARDS[name]), ())

    with absent_gpu(AMPERE) as questions:
        ours = trace(fake_build(build))
    assert AMPERE in questions.kinds
    equal = {kind for kind in all_kinds() if same(ours, trace_for(kind, build))}
    assert questions.kinds <= equal
    if name in ("attention in float32", "nothing"):
        assert questions.kinds == all_kinds()
    if name == "attention in bfloat16":
        assert {TURING, HOPPER}.isdisjoint(questions.kinds)
    if name == "bfloat16":
        assert questions.kinds == {kind for kind in all_kinds() if kind.major >= 8}


def test_an_answer_is_that_of_the_gpu_itself() -> None:
    questions = Questions(Capability(12, 0))
    assert questions.answer(lambda one: one) == (12, 0)
    assert questions.kinds == {Capability(12, 0).like}
