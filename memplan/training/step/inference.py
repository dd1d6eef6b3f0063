"""Forward passes within a budget, without gradients: inference, teachers, reference and reward models."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...graphs.errors import InputError
from ...torch_support.interrupts import deferred_signals
from ..checkpoints import checkpoint
from ..options import Options
from .retry import with_less
from .step import Step

_OF_TRAINING = (
    *("loss_fn", "targets", "optimizer", "update", "max_grad_norm", "master_weights", "ema", "scaler"),
    *("gradient_accumulation_steps", "rollback_on_error", "cuda_graph", "states", "gradients"),
)
"""Options that have no meaning without training."""


class InferenceStep(Step):
    """A Step that runs forward alone, in the module's mode: `optimize(…, train=False)`."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the forward pass on a batch, as under `torch.no_grad()`.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments.

        Returns:
            The module's output: the tensors that `return_outputs` names, all if it names none.

        Raises:
            MemplanError: as a call of a training step does.
        """
        checkpoint.check_loaded(self._iteration.module)
        with self._alone, torch.inference_mode(False):  # weights come and go in it
            plan, inputs = self._plans.serving(self.plans[0].given(arguments, keywords))
            with deferred_signals():
                with_less(
                    plan,
                    partial(self._iterate, inputs),
                    partial(self._smaller, inputs),
                    self._planner.around,
                )
            output, self.plans[0].output = self.plans[0].output, None
            return output


def validate_inference(options: Options) -> None:
    """Raise InputError, one line, for an option of training."""
    defaults = Options(budget="100%")
    given = [name for name in _OF_TRAINING if getattr(options, name) is not getattr(defaults, name)]
    if given:
        raise InputError(f"{given[0]}= is for training, and train=False runs forward alone: leave one out")
