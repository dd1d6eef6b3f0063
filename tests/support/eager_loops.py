"""The training loop of eager PyTorch that planned updates are compared with, and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from memplan.model.accumulated import SUM
from torch import Tensor, nn

Trained = tuple[nn.Module, Any]
"""A module and its optimizer."""


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
