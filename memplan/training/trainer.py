"""transformers' Trainer within a budget: its `compute_loss` is planned, the library's or a subclass's.

So label smoothing, `compute_loss_func` and the division by the number of tokens are in the plan. The loop is
the Trainer's: accumulation, clipping, optimizer and schedule, evaluation, checkpoints.

With `early_updates` or `bucket_size` clipping and updates are in the plan too (trainer_updates.py). With
FSDP2 (`fsdp=True`) so is evaluation (sharded_trainer.py).
"""

from __future__ import annotations

import sys
from typing import Any

from ..graphs.errors import InputError
from .accelerated import refuse_spread_sequences
from .option import takes
from .options import TrainerOptions
from .sharded_trainer import ShardedLoss, check_lengths
from .trainer_loss import PlannedLoss
from .trainer_updates import UpdatingLoss

_OWN_LOOP = "a loop of your own with memplan.optimize has it"

ELSEWHERE = {
    "loss_fn": "give Trainer(compute_loss_func=…), or override compute_loss",
    "targets": "the labels are those of the trainer's batches",
    "train": "plan a model for inference with memplan.optimize(…, train=False)",
    "optimizer": "give TrainingArguments(optim=…), or Trainer(optimizers=…)",
    "shard": "give TrainingArguments(fsdp=True)",
    "autocast": "give TrainingArguments(bf16=True)",
    "scaler": "give TrainingArguments(fp16=True)",
    "weights": "load the model before, by from_pretrained",
    "gradients": "the trainer frees them, which the plan knows",
    "return_outputs": "the trainer uses none in training",
    **{
        name: f"give TrainingArguments({name}=…)" for name in ("max_grad_norm", "gradient_accumulation_steps")
    },
    **dict.fromkeys(
        (
            *("update", "master_weights", "accumulate_dtype", "ema"),
            *("block_size", "rollback_on_error", "compile", "cuda_graph"),
        ),
        _OWN_LOOP,
    ),
}
"""Options of `optimize` that `optimize_trainer` does not take, with what to do instead."""


@takes(TrainerOptions, example="budget=…", first="trainer", elsewhere=ELSEWHERE)
def optimize_trainer(trainer: Any, options: TrainerOptions) -> PlannedLoss:
    """Let a transformers.Trainer compute losses and gradients within a budget: call it before `train()`.

    The first batch of each shape is planned. What planning and steps raise comes out of `trainer.train()`.

    Args:
        trainer (transformers.Trainer): a trainer whose compute_loss has not been replaced.

    Returns:
        The PlannedLoss that replaces `trainer.compute_loss`; its `step` exists from the first batch on.

    Raises:
        InputError: an option that is not valid, or a trainer that can't be planned.
    """
    _check(trainer, options)
    kind = UpdatingLoss if options.of_planned_updates else PlannedLoss
    trainer.compute_loss = (ShardedLoss if trainer.is_fsdp_enabled else kind)(trainer, options)
    return trainer.compute_loss


def _check(trainer: Any, options: TrainerOptions) -> None:
    """Check that the trainer can be planned. Raises InputError, one line."""
    # Not imported here: who has a Trainer has loaded it, and isinstance(x, ()) is False.
    kind = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    if not isinstance(trainer, kind):
        raise InputError(f"the trainer is a {type(trainer).__name__}, not one of transformers.Trainer")
    # In the instance: a subclass's method is not there, and is planned.
    if "compute_loss" in vars(trainer):
        raise InputError("the trainer's compute_loss has been replaced already: build the trainer anew")
    if trainer.is_deepspeed_enabled:
        raise InputError("DeepSpeed spreads weights over processes, which can't be planned: use fsdp=True")
    names = options.of_planned_updates
    if names and trainer.accelerator.scaler is not None and trainer.args.gradient_accumulation_steps > 1:
        raise InputError(
            f"{names[0]}= is not planned with fp16=True and gradient_accumulation_steps above 1: leave "
            f"{names[0]} out, or give the trainer bf16=True"
        )
    if trainer.is_fsdp_enabled:
        _check_fsdp(trainer)
        if trainer.compute_metrics is not None:
            check_lengths(options)


def _check_fsdp(trainer: Any) -> None:
    """Check that a trainer with fsdp= can be planned. Raises InputError, one line."""
    if (version := trainer.accelerator.state.fsdp_plugin.fsdp_version) != 2:
        raise InputError(f"fsdp_config has version {version} of FSDP, and 2 is supported: {{'version': 2}}")
    refuse_spread_sequences(getattr(trainer.accelerator, "parallelism_config", None))
    if (mixed := trainer.accelerator.mixed_precision) not in ("no", "bf16"):
        raise InputError(
            f"fsdp= and mixed precision in {mixed} are not planned together: give the trainer bf16=True"
        )
    if getattr(trainer.args, "predict_with_generate", False):
        raise InputError(
            "fsdp= and predict_with_generate=True are not planned together: leave it out, and generate with "
            "the model that a checkpoint of the training has"
        )
