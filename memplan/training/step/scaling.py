"""GradScaler around planned iterations: each gets the scale as it is at that time.

    loss = step(x)                      # backward of loss · scale, in the plan; the loss itself is unscaled
    scaler.scale(loss).backward()       # hands over the gradients as they are: the iteration's, to the bit

A scale that changes needs no new plan: it is a tensor among the inputs. With planned updates the step does
what `scaler.step(optimizer)` and `scaler.update()` do.
"""

from __future__ import annotations

import torch

from ...model.iteration import Inputs, Scaled, unscaled
from ...torch_support.torch_optimizers import report_infinite, reported_infinite


class Scaling:
    """A GradScaler's part in the iterations of a step.

    skipped: whether the last update was skipped because a gradient was infinite.
    """

    def __init__(self, scaler: torch.amp.GradScaler, device: torch.device, parts: int) -> None:
        """Set up scaling.

        device: the device on which iterations compute.
        parts: divisor that the loop around the step applies to its loss.
        """
        self.scaler, self.skipped, self._parts = scaler, False, parts
        self._one = torch.ones((), dtype=torch.float32, device=device)

    def of(self, inputs: Inputs) -> Scaled:
        """Return the inputs with the current scale, in a tensor of its own."""
        # Times 1.0: a copy, which later updates of the scale leave as it is.
        scale = self.scaler.scale(self._one)
        return Scaled(unscaled(inputs), scale if self._parts == 1 else scale / self._parts)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimizer's step on the gradients of a scaled loss, whether `unscale_` has run or not."""
        self.scaler.step(optimizer)
        # Before `update`, which clears what was found.
        self.skipped = reported_infinite(self.scaler, optimizer)
        self.scaler.update()

    def updated(self, optimizer: torch.optim.Optimizer, *, infinite: bool) -> None:
        """Update the scale after a planned iteration.

        infinite: a gradient was, so that the weights were not updated.
        """
        self.skipped = infinite
        report_infinite(self.scaler, optimizer, torch.full_like(self._one, float(infinite)))
        self.scaler.update()
