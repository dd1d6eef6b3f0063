"""transformers' Trainer within a budget: its `compute_loss` is planned, the library's or a subclass's.

So label smoothing, `compute_loss_func` and the division by the number of tokens are in the plan. The loop is
the Trainer's: accumulation, clipping, optimizer and schedule, evaluation, checkpoints.
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

    def __call__(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss. Without gradients, in evaluation, it is the trainer's own, not planned."""
        if not (model.training and torch.is_grad_enabled()):
            return self._own(model, inputs, return_outputs, num_items_in_batch)
        if return_outputs:
            raise MismatchError("compute_loss(…, return_outputs=True) in training: a plan has the loss alone")
        given = dict(inputs) if num_items_in_batch is None else {**inputs, _ITEMS: num_items_in_batch}
        if self.step is None or self._model is not model:
            self._model, self.step = model, self._planned(model, given)
        return self.step(given)

    def _planned(self, model: nn.Module, inputs: dict[str, Any]) -> Step:
        """Plan the trainer's loss for these inputs. Raises MemplanError."""
        trainer: Any = self._trainer()
        others = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
        others = {name: part for name, part in others.items() if part not in (model, trainer.model)}
        scaler = trainer.accelerator.scaler  # of float16
        # The Trainer frees the gradients after each update: they wait only for one of several batches.
        gradients = "freed" if trainer.args.gradient_accumulation_steps == 1 else "kept"
        options = self._options.extended(Options, scaler=scaler, gradients=gradients)
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


def _check(trainer: Any) -> None:
    """Check that the trainer can be planned. Raises InputError, one line."""
    kind = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    if not isinstance(trainer, kind):
        raise InputError(f"the trainer is a {type(trainer).__name__}, not one of transformers.Trainer")
    if "compute_loss" in vars(trainer):
        raise InputError("the trainer's compute_loss has been replaced already: build the trainer anew")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InputError("DeepSpeed and FSDP spread weights over processes, which can't be planned")
