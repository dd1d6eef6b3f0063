"""transformers' Trainer with FSDP2: more of its loop than the loss is in the plan.

accelerate shards the model when `train()` begins, and a plan takes it over with the first batch. From then on

    what the trainer calls                      what it does
    compute_loss                                a planned iteration, with the update after its last batch
    backward, clip_grad_norm_, optimizer.step   nothing: it is done, and the norm is the iteration's
    accelerator.no_sync                         nothing: gradients of each batch are scattered
    accelerator.prepare, if it trains twice     nothing: the model stays as the plan has it
    prediction_step                             a planned forward pass: no rank has whole weights

Between updates the sums of gradients have no meaning. Checkpoints are without them, as FSDP2's are.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ..graphs.errors import InputError, MismatchError
from .options import TrainerOptions
from .trainer_loss import with_items
from .trainer_updates import UpdatingLoss

_LEFT_OUT = "names of the outputs that are left out"
"""Name of that text among the inputs of a forward pass with outputs."""


class ShardedLoss(UpdatingLoss):
    """Replacement for `Trainer.compute_loss`, and for what the Trainer calls around it."""

    unclipped = None  # updates in backward wait for no norm over all ranks, and none is logged

    def __init__(self, trainer: Any, options: TrainerOptions) -> None:
        super().__init__(trainer, options)
        self._left_out: str | None = "past_key_values,loss"
        trainer.accelerator.no_sync, trainer.accelerator.prepare = _no_sync, self._prepare
        trainer.prediction_step = self._predict

    def _evaluated(self, model: nn.Module, inputs: Any, return_outputs: bool, items: Any) -> Any:
        """Return the loss of a batch in evaluation, planned if there is a plan, and the outputs if wanted."""
        if self.step is None:
            return self._own(model, inputs, return_outputs, items)
        given = with_items(inputs, items)
        if not return_outputs:
            return self.step.evaluate(given).loss
        if self._left_out is None:
            return self.step.evaluate(given).loss, {}
        check_lengths(self._options)
        return self.step.predict({**given, _LEFT_OUT: self._left_out})

    def _computed(self, model: nn.Module, inputs: dict[str, Any], **keywords: Any) -> Any:
        """Compute the trainer's loss; in a forward pass with outputs, those too."""
        left_out = inputs.pop(_LEFT_OUT, None)
        if left_out is None:
            return super()._computed(model, inputs, **keywords)
        loss, outputs = super()._computed(model, inputs, return_outputs=True)
        if isinstance(outputs, dict):
            outputs = {name: each for name, each in outputs.items() if name not in left_out.split(",")}
        return loss, outputs

    def _prepare(self, *objects: Any, **keywords: Any) -> Any:
        """Replace `accelerator.prepare`, which would shard the planned model once more."""
        trainer: Any = self._trainer()
        accelerator = trainer.accelerator
        if self.step is None or not any(each is self._model for each in objects):
            return type(accelerator).prepare(accelerator, *objects, **keywords)
        assert self._optimizer is not None
        for other in objects:
            if isinstance(other, torch.optim.Optimizer) and other is not self._optimizer():
                raise MismatchError(
                    "the trainer has another optimizer than the one whose updates are in the plan: build "
                    "model and trainer anew, and call memplan.optimize_trainer once more"
                )
        self._forget_sums()
        accelerator._models.append(self._model)  # the Trainer looks whether there is one
        return objects[0] if len(objects) == 1 else objects

    def _predict(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **keywords: Any,
    ) -> Any:
        """Replace `Trainer.prediction_step`: note which outputs it is going to leave out."""
        trainer: Any = self._trainer()
        if self.step is not None:
            _check_labels(trainer, inputs)
        before, ignored = self._left_out, ignore_keys
        if ignored is None:
            config = getattr(trainer.model, "config", None)
            ignored = getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])
        self._left_out = None if prediction_loss_only else ",".join((*ignored, "loss"))
        try:
            return type(trainer).prediction_step(
                trainer, model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **keywords
            )
        finally:
            self._left_out = before


def check_lengths(options: TrainerOptions) -> None:
    """Raise InputError, one line, if outputs would be longer than the labels that the trainer has."""
    if options.pad_to_lengths is not None:
        raise InputError(
            "fsdp= and pad_to_lengths= have no predictions for metrics, which would be as long as the padded "
            "batch: leave pad_to_lengths out, and have the data collator pad, by padding='max_length'"
        )


def _check_labels(trainer: Any, inputs: Any) -> None:
    """Raise MismatchError, one line, if the Trainer would call the model itself, which has shares alone."""
    names: Any = trainer.label_names
    labelled = all(inputs.get(name) is not None for name in names) if names else trainer.can_return_loss
    own = type(trainer).prediction_step.__module__ == "transformers.trainer"
    if own and not labelled:
        raise MismatchError(
            "with fsdp= a planned prediction needs labels: give each example "
            f"{' and '.join(names) or 'labels'}, of any values: predictions do not depend on them"
        )


def _no_sync(model: Any) -> AbstractContextManager[None]:
    """Replace `accelerator.no_sync`."""
    return nullcontext()
