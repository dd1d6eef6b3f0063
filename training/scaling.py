"""GradScaler around planned iterations: each is given the scale as it is then.

    loss = step(x)                      # backward of loss · scale, in the plan; the loss itself is unscaled
    scaler.scale(loss).backward()       # hands over the gradients as they are: the iteration's, to the bit

A scale that changes needs no new plan: it is a tensor beside the inputs.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import torch

from ..runtime.model.iteration import Inputs, Scaled, unscaled


class Scaling:
    def __init__(self, scaler: torch.amp.GradScaler, device: torch.device) -> None:
        """device: where iterations compute."""
        self.scaler = scaler
        self._one = torch.ones((), device=device)

    def of(self, inputs: Inputs) -> Scaled:
        """Inputs with the scale as it is now, in memory of its own."""
        return Scaled(unscaled(inputs), self.scaler.scale(self._one))
