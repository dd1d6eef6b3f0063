"""Optimizers that accelerate has wrapped: of sharded training, whose updates are in the plan."""

from __future__ import annotations

import sys
from typing import Any

from torch.optim import Optimizer

from ..graphs.errors import InputError
from .options import Options


def inside_accelerated(options: Options) -> Optimizer | None:
    """Return the optimizer inside of accelerate's, which skips steps while it accumulates; or another one.

    Raises:
        InputError: an accelerator that accumulates over other batches than the plan, or scales losses.
    """
    accelerated: Any = options.optimizer
    kind = getattr(sys.modules.get("accelerate.optimizer"), "AcceleratedOptimizer", ())
    if not isinstance(accelerated, kind):
        return options.optimizer
    if accelerated.scaler is not None:
        raise InputError(
            "accelerate scales losses in float16, which is not planned in sharded training: use "
            'mixed_precision="bf16"'
        )
    steps, planned = accelerated.gradient_state.num_steps, options.gradient_accumulation_steps
    if steps != planned:
        raise InputError(
            f"accelerate accumulates gradients over {steps} batches, and the plan over {planned}: give "
            f"optimize gradient_accumulation_steps={steps}, and call the step without accelerator.accumulate"
        )
    return accelerated.optimizer
