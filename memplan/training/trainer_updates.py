"""transformers' Trainer whose updates are in the plan.

    what the trainer calls                      what it does
    compute_loss                                a planned iteration, with the update after its last batch
    backward                                    nothing: it is done
    accelerator.clip_grad_norm_                 returns the iteration's norm
    optimizer.step                              says whether the iteration has skipped its update
    _save_optimizer_and_scheduler               frees sums of gradients, which no checkpoint has

Between updates the sums of gradients have no meaning.
"""

from __future__ import annotations

from math import inf
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..model.accumulated import forget_sums
from ..model.iteration import DIVISOR
from ..torch_support.torch_optimizers import replace_step, takes_scaled_gradients
from .options import Options, TrainerOptions
from .trainer_loss import PlannedLoss


class UpdatingLoss(PlannedLoss):
    """Replacement for `Trainer.compute_loss`, and for what the Trainer calls after it.

    unclipped: norm to which gradients are clipped with `max_grad_norm=0`: the Trainer logs their norm.
    """

    unclipped: float | None = inf

    def __init__(self, trainer: Any, options: TrainerOptions) -> None:
        super().__init__(trainer, options)
        self._optimizer: ref[Any] | None = None
        self._divisors = dict[tuple[int, torch.device], Tensor]()
        trainer._save_optimizer_and_scheduler = self._save

    def _trained(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        trainer: Any = self._trainer()
        if trainer.args.gradient_accumulation_steps > 1:
            inputs[DIVISOR] = self._divisor(trainer, items)
        loss = super()._trained(model, inputs, items)
        assert self.step is not None
        if trainer.accelerator.sync_gradients and not self.step.optimizer_stepped:
            self.step.update()  # an epoch's last one, of fewer batches
        # The Trainer divides what it logs, and calls backward, of which the step has done everything.
        return loss.detach().requires_grad_()

    def _serves(self, model: nn.Module) -> bool:
        """Tell whether the plan is of this model and of the trainer's present optimizer."""
        trainer: Any = self._trainer()
        known = None if self._optimizer is None else self._optimizer()
        return super()._serves(model) and known is trainer.optimizer

    def _divisor(self, trainer: Any, items: Any) -> Tensor:
        """Return by what `Trainer.training_step` divides the loss before backward."""
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            by_items = trainer.model_accepts_loss_kwargs and items is not None
            scaled = by_items or trainer.compute_loss_func is not None
        count, device = 1 if scaled else trainer.current_gradient_accumulation_steps, trainer.args.device
        if (count, device) not in self._divisors:
            self._divisors[count, device] = torch.tensor(count, device=device)
        return self._divisors[count, device]

    def _computed(self, model: nn.Module, inputs: dict[str, Any], **keywords: Any) -> Any:
        inputs.pop(DIVISOR, None)
        return super()._computed(model, inputs, **keywords)

    def _extended(self, trainer: Any) -> Options:
        self._optimizer = ref(trainer.optimizer)
        trainer.accelerator.clip_grad_norm_ = self._clip
        # Of accelerate's wrapper: eager PyTorch's iterations, to compare with, step the optimizer inside.
        replace_step(trainer.optimizer, self._stepped)
        return self._options.extended(
            Options,
            optimizer=trainer.optimizer.optimizer,
            max_grad_norm=trainer.args.max_grad_norm or self.unclipped,
            gradient_accumulation_steps=trainer.args.gradient_accumulation_steps,
            scaler=trainer.accelerator.scaler,  # of float16
        )

    def _clip(self, *_arguments: Any, **_keywords: Any) -> Tensor | None:
        """Return the norm of the gradients, which the step has clipped."""
        return None if self.step is None else self.step.grad_norm

    def _stepped(self) -> None:
        """Replace the optimizer's `step`: note for the schedule whether the update was skipped."""
        assert self.step is not None
        trainer: Any = self._trainer()
        accelerated = trainer.optimizer
        # GradScaler always calls the `step` of such an optimizer, so to accelerate none is skipped.
        always = takes_scaled_gradients(accelerated.optimizer)
        # What `step_was_skipped` returns.
        accelerated._is_overflow = not (self.step.optimizer_stepped or always)

    def _save(self, *arguments: Any, **keywords: Any) -> None:
        """Replace the Trainer's function that saves optimizer and schedule."""
        trainer: Any = self._trainer()
        self._forget_sums()
        type(trainer)._save_optimizer_and_scheduler(trainer, *arguments, **keywords)

    def _forget_sums(self) -> None:
        """Free the sums of gradients, which the next batch makes anew, and end an update that was begun."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is not None:
            forget_sums(optimizer)
