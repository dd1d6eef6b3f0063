"""Rules between the options of `optimize`, its module and its inputs: which go together."""

from __future__ import annotations

import torch
from torch import nn

from ..graphs.errors import InputError
from ..model.iteration import Inputs, tensors_in
from ..model.processes import Processes
from ..profiling.fusion.kernel import check_compiler
from ..updates.averaged import validate_average
from ..updates.masters import prepare_masters, prepare_wide_sums
from ..updates.several import SeveralOptimizers
from .checkpoints.weights import check_weights
from .options import Options

_OF_TRAINING = (
    *("loss_fn", "targets", "optimizer", "update", "max_grad_norm", "master_weights", "ema", "scaler"),
    *(
        "gradient_accumulation_steps",
        "early_updates",
        "bucket_size",
        "block_size",
        "rollback_on_error",
        "cuda_graph",
        "states",
        "gradients",
    ),
)
"""Options that have no meaning without training."""


def validate_inference(options: Options) -> None:
    """Raise InputError, one line, for an option of training."""
    defaults = Options(budget="100%")
    # `is`: targets are tensors, whose != has no single truth value.
    given = [name for name in _OF_TRAINING if getattr(options, name) is not getattr(defaults, name)]
    if given:
        raise InputError(f"{given[0]}= is for training, and train=False runs forward alone: leave one out")


def validate_options(
    options: Options,
    module: nn.Module,
    inputs: Inputs,
    processes: Processes | None,
    *,
    planned: bool,
    sharded: bool,
) -> None:
    """Raise InputError, one line, for options that do not go together.

    processes: the ranks of a DistributedDataParallel, None for a single process.
    planned: whether the optimizer's updates are part of the plan.
    sharded: whether weights are spread over ranks.
    """
    _validate_batch(inputs)
    _validate_autocast(options)
    _validate_updates(options, planned=planned)
    if options.early_updates:
        _validate_early(options, planned=planned)
    for name in ("bucket_size", "block_size"):
        if getattr(options, name) is not None:
            _validate_sizes(options, name, planned=planned)
    if not sharded:  # sharded.py has another way out
        check_weights(module, options.weights)
    if options.master_weights:
        prepare_masters(module, options.optimizer if planned else None)
    if options.accumulate_dtype is not None:
        if options.gradient_accumulation_steps == 1:
            raise InputError(
                "accumulate_dtype= goes with gradient_accumulation_steps above 1: one batch has no sum"
            )
        if processes is not None or sharded:
            raise InputError(
                "accumulate_dtype= is not planned with several processes: leave it out, or train in float32 "
                "with autocast=torch.bfloat16"
            )
        if not options.master_weights:
            prepare_wide_sums(options.optimizer if planned else None)
    if options.ema is not None:
        validate_average(module, planned=planned, masters=options.master_weights)
    if options.compile:
        _validate_compiler(inputs, processes)
    if options.split:
        _validate_split(options, processes, sharded=sharded)


def _validate_batch(inputs: Inputs) -> None:
    on_meta = next((name for name, tensor in tensors_in(inputs).items() if tensor.is_meta), None)
    if on_meta is not None:
        raise InputError(
            f"the batch is on meta, without values ({on_meta or 'the input'}): give one that the module can "
            "run, such as torch.zeros_like(batch, device='cpu'); only the module may be on meta"
        )


def _validate_autocast(options: Options) -> None:
    if options.autocast is None:
        return
    if options.autocast == torch.float16 and options.scaler is None:
        raise InputError(
            "autocast=torch.float16 needs a scaled loss: give scaler=torch.amp.GradScaler(device), or use "
            "torch.bfloat16"
        )
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):  # without a name: GPUs
        raise InputError("autocast= is given, and optimize is called under torch.autocast: leave one out")


def _validate_updates(options: Options, *, planned: bool) -> None:
    if isinstance(options.optimizer, SeveralOptimizers):
        names = ", ".join(type(member).__name__ for member in options.optimizer.members)
        if not planned:
            raise InputError(
                f"optimizer=[…] of {names}: not all of them can be planned: plan without optimizer=, and "
                "call loss.backward() and each step() after the step"
            )
        if options.enabled_scaler is not None:
            raise InputError(
                f"optimizer=[…] of {names} and scaler are not planned together: train in bfloat16, without a "
                "scaler, or plan without optimizer="
            )
    several = options.gradient_accumulation_steps > 1
    scaled = options.enabled_scaler is not None
    if several and options.optimizer is None and not scaled:
        raise InputError(
            "gradient_accumulation_steps goes with optimizer=: without updates in the step your loop "
            "accumulates, with (loss / N).backward()"
        )
    if several and scaled and planned:
        raise InputError(
            "scaler and gradient_accumulation_steps are not planned together: leave optimizer= out, and let "
            "your loop accumulate, with gradient_accumulation_steps=N and scaler.scale(loss / N).backward()"
        )
    if options.max_grad_norm is not None and options.optimizer is None:
        raise InputError(
            "max_grad_norm goes with optimizer=: without updates in the step your loop clips, with "
            "torch.nn.utils.clip_grad_norm_"
        )


def _validate_early(options: Options, *, planned: bool) -> None:
    def refuse(line: str) -> None:
        raise InputError(f"early_updates=True {line}")

    if not planned:
        kind = "your loop" if options.optimizer is None else type(options.optimizer).__name__
        refuse(f"needs planned updates, and {kind} steps after the plan: leave it out")
    if options.max_grad_norm is None and options.enabled_scaler is None:
        refuse("goes with max_grad_norm= or scaler=: without them no update waits, so leave it out")
    if options.update != "in-backward":
        refuse(f"and update={options.update!r} contradict each other: leave one out")
    if options.cuda_graph:
        refuse("and cuda_graph=True are not planned together: leave one out")


def _validate_sizes(options: Options, given: str, *, planned: bool) -> None:
    """Raise InputError for what does not go with buckets or row blocks. given: the option of these."""
    if not planned:
        kind = "your loop" if options.optimizer is None else type(options.optimizer).__name__
        raise InputError(f"{given}= needs planned updates, and {kind} steps after the plan: leave it out")
    if options.cuda_graph:
        raise InputError(f"{given}= and cuda_graph=True are not planned together: leave {given}= out")


def _validate_split(options: Options, processes: Processes | None, *, sharded: bool) -> None:
    if processes is not None or sharded:
        raise InputError(f"split={options.split!r} is not planned with several processes: leave it out")
    if options.compile:
        raise InputError(f"split={options.split!r} and compile=True are not planned together: leave one out")


def _validate_compiler(inputs: Inputs, processes: Processes | None) -> None:
    if processes is not None:
        raise InputError("compile=True: each rank of a DistributedDataParallel would have kernels of its own")
    for tensor in tensors_in(inputs).values():
        check_compiler(tensor.device)
