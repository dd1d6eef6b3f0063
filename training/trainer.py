"""transformers' Trainer within a budget: its `compute_loss` is planned, the library's or a subclass's.

So label smoothing, `compute_loss_func` and the division by the number of tokens are in the plan. The loop is
the Trainer's: accumulation, clipping, optimizer and schedule, evaluation, checkpoints.

With FSDP2 (`fsdp=True`) weights, gradients and states are spread over ranks, and updates are in the plan: the
Trainer's own find no gradients. Evaluation is planned too, since no rank has whole weights.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import ref

import torch
from torch import nn

from ..graphs.errors import InputError, MismatchError
from ..runtime.model.processes import Around
from .collators import collated_pads
from .optimize import optimize_with
from .option import takes
from .options import Options, PlanningOptions
from .step import Step

_ITEMS = "the trainer's num_items_in_batch"
"""Name of the trainer's count among the inputs of a plan; a batch may have one of its own."""


@takes(PlanningOptions, example="budget=…", first="trainer")
def optimize_trainer(trainer: Any, options: PlanningOptions) -> PlannedLoss:
    """Let a transformers.Trainer compute losses and gradients within a budget: call it before `train()`.

    The first batch of each shape is planned. What planning and steps raise comes out of `trainer.train()`.

    Args:
        trainer (transformers.Trainer): a trainer whose compute_loss has not been replaced.

    Returns:
        The PlannedLoss that replaces `trainer.compute_loss`; its `step` exists from the first batch on.

    Raises:
        InputError: an option that is not valid, or a trainer that can't be planned.
    """
    _check(trainer)
    trainer.compute_loss = PlannedLoss(trainer, options)
    return trainer.compute_loss


class PlannedLoss:
    """Replacement for `Trainer.compute_loss`. step: the planned step, None until the first training batch."""

    def __init__(self, trainer: Any, options: PlanningOptions) -> None:
        self.step: Step | None = None
        self._trainer, self._options = ref(trainer), options  # a walk of what the loss reaches ends here
        self._model: nn.Module | None = None
        self._sharded: bool = trainer.is_fsdp_enabled

    def __call__(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss. Without gradients, in evaluation, it is the trainer's own, not planned."""
        if not (model.training and torch.is_grad_enabled()):
            if self._sharded and self.step is not None:
                return self._evaluated(_given(inputs, num_items_in_batch), return_outputs)
            return self._own(model, inputs, return_outputs, num_items_in_batch)
        if return_outputs:
            raise MismatchError("compute_loss(…, return_outputs=True) in training: a plan has the loss alone")
        given = _given(inputs, num_items_in_batch)
        if self.step is None or self._model is not model:
            self._model, self.step = model, self._planned(model, given)
        loss = self.step(given)
        # The Trainer calls backward, of which the step has done everything.
        return loss.detach().requires_grad_() if self._sharded else loss

    def _evaluated(self, inputs: dict[str, Any], return_outputs: bool) -> Any:
        """Return the loss of a batch in evaluation, and no outputs: metrics can't be computed."""
        trainer: Any = self._trainer()
        if return_outputs and trainer.compute_metrics is not None:
            raise MismatchError(
                "with fsdp= a planned evaluation has the loss alone: leave compute_metrics out"
            )
        assert self.step is not None
        loss = self.step.evaluate(inputs).loss
        return (loss, {}) if return_outputs else loss

    def _clip(self, *_arguments: Any, **_keywords: Any) -> torch.Tensor | None:
        """Return the norm of the gradients, which the step has clipped."""
        return None if self.step is None else self.step.grad_norm

    def _planned(self, model: nn.Module, inputs: dict[str, Any]) -> Step:
        """Plan the trainer's loss for these inputs. Raises MemplanError."""
        trainer: Any = self._trainer()
        others = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
        others = {name: part for name, part in others.items() if part not in (model, trainer.model)}
        scaler = trainer.accelerator.scaler  # of float16
        # The Trainer frees the gradients after each update: they wait only for one of several batches.
        gradients = "freed" if trainer.args.gradient_accumulation_steps == 1 else "kept"
        options = self._options.extended(Options, scaler=scaler, gradients=gradients)
        if self._sharded:
            clipped = trainer.args.max_grad_norm or None
            options = options.replaced(optimizer=trainer.optimizer, max_grad_norm=clipped)
            # What the Trainer calls after backward, the step has done. Schedules watch accelerate's
            # optimizer, which stays.
            trainer.accelerator.clip_grad_norm_, trainer.optimizer.optimizer.step = self._clip, _done
        if options.pad_to_lengths is not None and options.pad_values is None:
            options = options.replaced(pad_values=collated_pads(trainer, inputs))
        around = Around(model, self._computed, others, type(trainer).compute_loss, self._trainer)
        return optimize_with(around, inputs, options)

    def _computed(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Compute the trainer's loss. inputs: a new dict, from which the trainer may remove labels."""
        return self._own(model, inputs, num_items_in_batch=inputs.pop(_ITEMS, None))

    def _own(self, *arguments: Any, **keywords: Any) -> Any:
        trainer: Any = self._trainer()
        return type(trainer).compute_loss(trainer, *arguments, **keywords)


def _given(inputs: Any, items: Any) -> dict[str, Any]:
    return dict(inputs) if items is None else {**inputs, _ITEMS: items}


def _done(closure: Any = None) -> None:
    """Replace the optimizer's `step`."""


def _check(trainer: Any) -> None:
    """Check that the trainer can be planned. Raises InputError, one line."""
    kind = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    if not isinstance(trainer, kind):
        raise InputError(f"the trainer is a {type(trainer).__name__}, not one of transformers.Trainer")
    if "compute_loss" in vars(trainer):
        raise InputError("the trainer's compute_loss has been replaced already: build the trainer anew")
    if trainer.is_deepspeed_enabled:
        raise InputError("DeepSpeed spreads weights over processes, which can't be planned: use fsdp=True")
    if trainer.is_fsdp_enabled:
        _check_fsdp(trainer)


def _check_fsdp(trainer: Any) -> None:
    """Check that a trainer with fsdp= can be planned. Raises InputError, one line."""
    if (version := trainer.accelerator.state.fsdp_plugin.fsdp_version) != 2:
        raise InputError(f"fsdp_config has version {version} of FSDP, and 2 is supported: {{'version': 2}}")
    if (mixed := trainer.accelerator.mixed_precision) not in ("no", "bf16"):
        raise InputError(
            f"fsdp= and mixed precision in {mixed} are not planned together: give the trainer bf16=True"
        )
    if (steps := trainer.args.gradient_accumulation_steps) > 1:
        raise InputError(
            f"fsdp= and gradient_accumulation_steps={steps} are not planned together: leave it out, and give "
            f"per_device_train_batch_size={steps * trainer.args.per_device_train_batch_size}"
        )
