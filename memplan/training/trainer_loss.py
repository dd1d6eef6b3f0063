"""The loss of transformers' Trainer as a planned step, which the Trainer calls as its `compute_loss`."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import nn

from ..graphs.errors import MismatchError
from ..model.processes import Around
from .collators import collated_pads
from .optimize import optimize_with
from .options import Options, TrainerOptions
from .step.step import Step

_ITEMS = "the trainer's num_items_in_batch"
"""Name of the trainer's count among the inputs of a plan; a batch may have one of its own."""


class PlannedLoss:
    """Replacement for `Trainer.compute_loss`. step: the planned step, None until the first training batch."""

    def __init__(self, trainer: Any, options: TrainerOptions) -> None:
        self.step: Step | None = None
        self._trainer, self._options = ref(trainer), options  # a walk of what the loss reaches ends here
        self._model: nn.Module | None = None

    def __call__(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss. Without gradients, in evaluation, it is not trained."""
        if not (model.training and torch.is_grad_enabled()):
            return self._evaluated(model, inputs, return_outputs, num_items_in_batch)
        if return_outputs:
            raise MismatchError("compute_loss(…, return_outputs=True) in training: a plan has the loss alone")
        return self._trained(model, dict(inputs), num_items_in_batch)

    def _trained(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Any:
        """Return the loss of a training batch. items: the trainer's num_items_in_batch, or None."""
        given = with_items(inputs, items)
        if self.step is None or not self._serves(model):
            self._model, self.step = model, self._planned(model, given)
        return self.step(given)

    def _serves(self, model: nn.Module) -> bool:
        """Tell whether the plan is of this model."""
        return self._model is model

    def _evaluated(self, model: nn.Module, inputs: Any, return_outputs: bool, items: Any) -> Any:
        """Return the loss of a batch in evaluation: the trainer's own, not planned."""
        return self._own(model, inputs, return_outputs, items)

    def _planned(self, model: nn.Module, inputs: dict[str, Any]) -> Step:
        """Plan the trainer's loss for these inputs. Raises MemplanError."""
        trainer: Any = self._trainer()
        others = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
        others = {name: part for name, part in others.items() if part not in (model, trainer.model)}
        options = self._extended(trainer)
        if options.pad_to_lengths is not None and options.pad_values is None:
            options = options.replaced(pad_values=collated_pads(trainer, inputs))
        around = Around(model, self._computed, others, type(trainer).compute_loss, self._trainer)
        return optimize_with(around, inputs, options)

    def _extended(self, trainer: Any) -> Options:
        """Return all options of the step: what the trainer says of its loop, too."""
        scaler = trainer.accelerator.scaler  # of float16
        # The Trainer frees the gradients after each update: they wait only for one of several batches.
        gradients = "freed" if trainer.args.gradient_accumulation_steps == 1 else "kept"
        return self._options.extended(Options, scaler=scaler, gradients=gradients)

    def _computed(self, model: nn.Module, inputs: dict[str, Any], **keywords: Any) -> Any:
        """Compute the trainer's loss. inputs: a new dict, from which the trainer may remove labels."""
        return self._own(model, inputs, num_items_in_batch=inputs.pop(_ITEMS, None), **keywords)

    def _own(self, *arguments: Any, **keywords: Any) -> Any:
        trainer: Any = self._trainer()
        return type(trainer).compute_loss(trainer, *arguments, **keywords)


def with_items(inputs: Any, items: Any) -> dict[str, Any]:
    """Return the inputs of a plan. items: the trainer's num_items_in_batch, or None."""
    return dict(inputs) if items is None else {**inputs, _ITEMS: items}
