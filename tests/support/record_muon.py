"""Muon as speed records of language models have it, with Adam for what is no matrix: a user's own optimizer.

Its step changes gradients in place, makes those that are missing, and can compile its iteration of Newton
and Schulz, in bfloat16.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def orthogonal(matrix: Tensor) -> Tensor:
    x = matrix.bfloat16()
    tall = x.size(0) > x.size(1)
    x = x.mT if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


orthogonal_compiled: Callable[[Tensor], Tensor] = torch.compile(orthogonal, backend="eager", fullgraph=True)


class RecordMuon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], *, compiled: bool = False) -> None:
        given = list(parameters)
        groups = [
            {"params": [p for p in given if p.dim() > 1], "lr": 0.02, "matrices": True},
            {"params": [p for p in given if p.dim() <= 1], "lr": 3e-3, "matrices": False},
        ]
        super().__init__(groups, {"momentum": 0.95, "weight_decay": 0.1})
        self.compiled = compiled

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                change = self._direction(weight.grad, self.state[weight], group)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(change, alpha=-group["lr"])

    def _direction(self, gradient: Tensor, row: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if group["matrices"]:
            momentum = row.setdefault("momentum_buffer", torch.zeros_like(gradient))
            momentum.lerp_(gradient, 1 - group["momentum"])
            made = (orthogonal_compiled if self.compiled else orthogonal)(
                gradient.lerp_(momentum, group["momentum"])
            )
            made *= max(1, gradient.size(0) / gradient.size(1)) ** 0.5
            return made
        if not row:
            row |= {
                "exp_avg": torch.zeros_like(gradient),
                "exp_avg_sq": torch.zeros_like(gradient),
                "step": 0,
            }
        row["step"] += 1
        first = row["exp_avg"].lerp_(gradient, 0.1) / (1 - 0.9 ** row["step"])
        second = row["exp_avg_sq"].lerp_(gradient.square(), 0.05) / (1 - 0.95 ** row["step"])
        return first / (second.sqrt() + 1e-10)
