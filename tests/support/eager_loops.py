"""The training loop of eager PyTorch that planned updates are compared with, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import memplan
import torch
from memplan.model.accumulated import SUM
from memplan.profiling.fusion.choice import COMPILED
from torch import Tensor, nn
from transfers import MACHINE

Trained = tuple[nn.Module, Any]
"""A module and its optimizer."""


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, 1e-2, foreach=False)


def fused(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, 1e-2, fused=True)


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def trained_eagerly(
    module: nn.Module, optimizer: Any, given: Sequence[Tensor], *, every: int = 1, norm: float | None = None
) -> None:
    """Train on these batches; update after every so many, and after the last."""
    for number, x in enumerate(given, 1):
        (mean_square(module(x)) / every).backward()
        if number % every == 0 or number == len(given):
            if norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()


def assert_same(own: Trained, other: Trained) -> None:
    """Compare all bits of weights and of states, but for sums of gradients."""
    assert all(map(torch.equal, own[0].state_dict().values(), other[0].state_dict().values()))
    found, expected = (_states(optimizer) for _module, optimizer in (own, other))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def _states(optimizer: Any) -> dict[tuple[int, str], Tensor]:
    rows = optimizer.state_dict()["state"].items()
    return {
        (index, name): value
        for index, row in rows
        for name, value in row.items()
        if name != SUM and value is not None
    }


def verified_with_fused_operations(own: Callable[..., torch.optim.Optimizer], **options: Any) -> Any:
    """Return a step that has trained: verified, bit by bit the same kernels without a plan."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Sigmoid(), nn.Linear(128, 32)) for _ in range(3)
    ]
    module, x = nn.Sequential(*layers), torch.randn(256, 32)
    step = memplan.optimize(
        module,
        x,
        loss_fn=mean_square,
        optimizer=own(module.parameters()),
        budget="60%",
        machine=MACHINE,
        solver="joint",
        time_limit=1,
        cache=False,
        verify=True,
        compile=True,
        **options,
    )
    assert step.plan.graph.source[COMPILED]
    losses = [step(x).item() for _ in range(3)]
    assert losses[2] < losses[0]
    return step
