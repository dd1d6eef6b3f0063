"""transformers' Adafactor in a plan: weights and states are its own, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.updates.choice import OptimizerChoice
from optimizer_loops import Make, compare, compare_loaded, compare_resumed, network
from torch import nn

transformers = pytest.importorskip("transformers")

OF_TRAINER = {"lr": 3e-3, "scale_parameter": False, "relative_step": False}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"warmup_init": True, "weight_decay": 0.1},
    OF_TRAINER,
    {**OF_TRAINER, "beta1": 0.9, "weight_decay": 0.1},
    {"lr": 2e-3, "relative_step": False, "clip_threshold": 0.5, "decay_rate": -0.5},
]


def make_of(**options: Any) -> Make:
    from transformers.optimization import Adafactor

    return lambda module: Adafactor(module.parameters(), **options)


@pytest.mark.parametrize("options", OPTIONS)
def test_weights_and_states_are_those_of_the_optimizer(options: dict[str, Any]) -> None:
    compare(make_of(**options), network())


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clipped_and_accumulated(dtype: torch.dtype, every: int) -> None:
    compare(make_of(weight_decay=0.1, beta1=0.9), network().to(dtype), norm=0.01, every=every)


def test_a_weight_of_three_dimensions() -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(3, 6, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.weight)

    compare(make_of(**OF_TRAINER), Products())


def test_states_are_loaded_both_ways() -> None:
    compare_loaded(make_of(), network())


def test_a_checkpoint_goes_on(tmp_path: Path) -> None:
    compare_resumed(make_of(weight_decay=0.1, beta1=0.9), network(), tmp_path)


def test_the_command_line_makes_one() -> None:
    optimizer = OptimizerChoice("adafactor_transformers", lr=1e-3).optimizer(network().parameters())
    assert type(optimizer).__name__ == "Adafactor"
    assert not optimizer.param_groups[0]["relative_step"]


def test_compared_with_eager_before_training() -> None:
    compare(make_of(**OF_TRAINER), network(), verify=True)
