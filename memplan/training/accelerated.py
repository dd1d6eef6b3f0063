"""What accelerate has wrapped: optimizers, which skip steps while it accumulates, and modules, also those
that its hooks offload.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..graphs.errors import InputError
from ..model.processes import Processes
from ..torch_support.unsupported import warn_user
from .options import Options

_UNDO = "call accelerate.hooks.remove_hook_from_module(model, recurse=True) first"


def refuse_offloading_hooks(module: nn.Module) -> None:
    """Raise InputError if accelerate's hooks bring weights when they are needed: device_map, cpu_offload,
    disk_offload, cpu_offload_with_hook.

    Of all but the last, the weights themselves are on meta, and get no gradients in eager PyTorch either.
    """
    # Not imported here: whose module has such a hook has loaded accelerate.
    whole: Any = getattr(sys.modules.get("accelerate.hooks"), "CpuOffload", ())
    for name, part in module.named_modules():
        hook: Any = getattr(part, "_hf_hook", None)
        # A SequentialHook holds several.
        for each in getattr(hook, "hooks", (hook,)):
            if isinstance(each, whole):
                raise InputError(
                    f"accelerate's cpu_offload_with_hook moves {name or 'the module'} in forward, and a plan "
                    f"moves weights itself: {_UNDO}; memplan offloads it by machine="
                )
            if not getattr(each, "offload", False):
                continue
            before = getattr(each, "original_devices", {}).values()
            way = "load the model without device_map="
            if all(device.type != "meta" for device in before):  # the hooks bring the weights back
                way = _UNDO
            raise InputError(
                f"accelerate's hooks offload {name or 'the module'} (device_map=, cpu_offload or "
                f"disk_offload), and its weights get no gradients: {way}; memplan offloads it by machine="
            )


def inside_accelerated(options: Options) -> Optimizer | None:
    """Return the optimizer inside of accelerate's, which skips steps while it accumulates; or another one.

    Raises:
        InputError: an accelerator that accumulates over other batches than the plan, scales losses, or
            spreads sequences.
    """
    accelerated = _accelerated(options)
    if accelerated is None:
        return options.optimizer
    state: Any = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    refuse_spread_sequences(state and state._shared_state.get("parallelism_config"))
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


def without_accelerate(options: Options) -> Optimizer | None:
    """Return the optimizer inside of accelerate's if both step at the same batches, else the one given."""
    accelerated = _accelerated(options)
    if accelerated is None or accelerated.scaler is not None:
        return options.optimizer
    same = accelerated.gradient_state.num_steps == options.gradient_accumulation_steps
    return accelerated.optimizer if same else options.optimizer


def _accelerated(options: Options) -> Any:
    """Return the optimizer if it is accelerate's wrapper, else None."""
    kind = getattr(sys.modules.get("accelerate.optimizer"), "AcceleratedOptimizer", ())
    return options.optimizer if isinstance(options.optimizer, kind) else None


def warn_of_ddp(processes: Processes | None) -> None:
    """Warn if accelerate was to shard the module, and has made a DistributedDataParallel of it.

    processes: those of a DistributedDataParallel, None if the module is none.
    """
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and "accelerate" in sys.modules
    if asked and processes is not None:
        warn_user(
            "accelerate shards on GPUs alone: asked for FSDP, it has made a DistributedDataParallel of this "
            "module, whose weights every rank has whole. To try sharding on CPUs, call fully_shard yourself "
            "instead of accelerator.prepare, or do what examples/fsdp_on_cpus.py does"
        )


def refuse_spread_sequences(parallelism: Any) -> None:
    """Raise InputError if accelerate's configuration spreads sequences over ranks. None: there is none."""
    for name in ("cp_size", "sp_size"):
        if (size := getattr(parallelism, name, None) or 1) > 1:
            raise InputError(
                f"accelerate's ParallelismConfig spreads sequences over ranks, which is not planned: leave "
                f"{name}={size} out, and give these ranks to dp_shard_size"
            )
