"""transformers' Trainer within a budget: its `compute_loss` is planned, the library's or a subclass's.

So label smoothing, `compute_loss_func` and the division by the number of tokens are in the plan. The loop is
the Trainer's: accumulation, clipping, optimizer and schedule, evaluation, checkpoints.

With FSDP2 (`fsdp=True`) updates and evaluation are in the plan too (sharded_trainer.py).
"""

from __future__ import annotations

import sys
from typing import Any

from ..graphs.errors import InputError
from .accelerated import refuse_spread_sequences
from .option import takes
from .options import PlanningOptions
from .sharded_trainer import ShardedLoss, check_lengths
from .trainer_loss import PlannedLoss


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
    _check(trainer, options)
    kind = ShardedLoss if trainer.is_fsdp_enabled else PlannedLoss
    trainer.compute_loss = kind(trainer, options)
    return trainer.compute_loss


def _check(trainer: Any, options: PlanningOptions) -> None:
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
