"""GradScaler around planned iterations: each is given the scale as it is then.

    loss = step(x)                      # backward of loss · scale, in the plan; the loss itself is unscaled
    scaler.scale(loss).backward()       # hands over the gradients as they are: the iteration's, to the bit

A scale that changes needs no new plan: it is a tensor beside the inputs. With planned updates the step does
what `scaler.step(optimizer)` and `scaler.update()` do.
"""

from __future__ import annotations

import torch

from ..runtime.model.iteration import Inputs, Scaled, unscaled
from ..runtime.torch_internals import tell_infinite, told_infinite


class Scaling:
    """skipped: the last update was, since a gradient was infinite."""

    def __init__(self, scaler: torch.amp.GradScaler, device: torch.device, parts: int) -> None:
        """device: where iterations compute. parts: what the loop around the step divides its loss by."""
        self.scaler, self.skipped, self._parts = scaler, False, parts
        self._one = torch.ones((), dtype=torch.float32, device=device)

    def of(self, inputs: Inputs) -> Scaled:
        """Inputs with the scale as it is now, in memory of its own."""
        scale = self.scaler.scale(self._one)
        return Scaled(unscaled(inputs), scale if self._parts == 1 else scale / self._parts)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Behind the gradients of a scaled loss, unscaled by `unscale_` or not yet."""
        self.scaler.step(optimizer)
        self.skipped = told_infinite(self.scaler, optimizer)
        self.scaler.update()

    def updated(self, optimizer: torch.optim.Optimizer, *, infinite: bool) -> None:
        """Behind an iteration that has updated the weights, or not as one of its gradients was infinite."""
        self.skipped = infinite
        tell_infinite(self.scaler, optimizer, torch.full_like(self._one, float(infinite)))
        self.scaler.update()
