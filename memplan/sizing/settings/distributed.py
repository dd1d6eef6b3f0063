"""Files of what distributes training: DeepSpeed's ds_config.json, and accelerate's YAML with FSDP's section.

DeepSpeed's bf16 and fp16 hold weights and gradients in 16 bits, and float32 masters in the optimizer.
accelerate gives FSDP a policy with param_dtype and reduce_dtype of mixed_precision, makes trained weights
float32, and runs forward in autocast too.

References: DeepSpeed's "Configuration JSON"; accelerate's `accelerate config`; of accelerate 1.15
`FullyShardedDataParallelPlugin.set_mixed_precision`, `fsdp2_prepare_model` and `Accelerator.prepare_model`.
"""

from __future__ import annotations

from typing import Any

from .optimizers import take_optimizer
from .settings import Keys, Settings

_ZERO_3 = 3
_OFFLOADING = ("cpu", "nvme")


def read_deepspeed(keys: Keys, settings: Settings) -> None:
    batch, steps = keys.integer("train_micro_batch_size_per_gpu"), keys.integer("gradient_accumulation_steps")
    settings.take("batch", batch, f"micro-batch {batch}")
    settings.take("accumulate", steps, f"accumulation {steps}")
    total = keys.integer("train_batch_size")
    # DeepSpeed's train_batch_size is micro-batch * accumulation * processes, and refused otherwise.
    if total is not None and batch is not None and total % (batch * (steps or 1)) == 0:
        settings.processes = total // (batch * (steps or 1))
    for half in ("bf16", "fp16"):
        if keys.section(half, f"{half.replace('bf16', 'bfloat16')}").flag("enabled"):
            settings.take("autocast", half, half)
            settings.masters = True
    zero = keys.section("zero_optimization")
    optimizer = _device(zero, "offload_optimizer", "cpu_offload")
    _take_zero(settings, zero.value("stage"), optimizer, _device(zero, "offload_param", "cpu_offload_params"))
    take_optimizer(settings, keys.section("optimizer").text("type"), "optimizer.type")
    checkpointing = keys.section("activation_checkpointing")
    settings.uncounted += [
        f"activation_checkpointing.{key}" for key in checkpointing.present(("cpu_checkpointing",))
    ]
    settings.uncounted += keys.present(
        ("pipeline", "tensor_parallel", "compression_training", "quantize_training")
    )
    settings.uncounted += keys.misspelled()


def read_accelerate(keys: Keys, settings: Settings) -> None:
    half = keys.text("mixed_precision")
    if half in ("bf16", "fp16"):
        settings.take("autocast", half, half)
    elif half is not None:
        settings.uncounted.append(f"mixed_precision {half}")
    settings.processes = keys.integer("num_processes")
    kind = (keys.text("distributed_type") or "").upper()
    if kind == "DEEPSPEED":
        deepspeed = keys.section("deepspeed_config")
        settings.masters = "autocast" in settings.options
        steps = deepspeed.integer("gradient_accumulation_steps")
        settings.take("accumulate", steps, f"accumulation {steps}")
        offloads = (deepspeed.text(f"offload_{what}_device") for what in ("optimizer", "param"))
        _take_zero(settings, deepspeed.value("zero_stage"), *offloads)
        settings.includes += deepspeed.texts("deepspeed_config_file")
    elif kind == "FSDP":
        _take_fsdp(settings, keys.section("fsdp_config"))
    elif kind not in ("", "NO", "MULTI_GPU"):
        settings.uncounted.append(f"distributed_type {kind}")
    settings.uncounted += keys.present(("fp8_config", "megatron_lm_config", "tp_config", "dynamo_config"))
    settings.uncounted += keys.misspelled()


def _take_fsdp(settings: Settings, fsdp: Keys) -> None:
    strategy = str(fsdp.value("fsdp_sharding_strategy") or fsdp.value("fsdp_reshard_after_forward") or "")
    # Numbers are of torch's ShardingStrategy, which older files have.
    if strategy.upper() in ("NO_SHARD", "3"):
        settings.uncounted.append("fsdp_sharding_strategy NO_SHARD: each process has all weights")
    else:
        settings.sharded = "FSDP"
    if strategy.upper() in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5"):
        settings.uncounted.append("fsdp_sharding_strategy HYBRID_SHARD: --replicas N has sets of ranks")
    if fsdp.flag("fsdp_offload_params"):
        settings.said.append("weights and states offloaded (a plan may do so)")
    if fsdp.flag("fsdp_activation_checkpointing"):
        settings.said.append("activation checkpointing (a choice of FSDP2's policies)")


def _take_zero(settings: Settings, stage: Any, optimizer: str | None, weights: str | None) -> None:
    """Set what ZeRO's stage and its offloading say. optimizer, weights: devices that hold these."""
    if stage == _ZERO_3:
        settings.sharded = "ZeRO-3"
    # Stage 0 shards nothing: each process holds what one GPU holds.
    elif isinstance(stage, int) and stage > 0:
        settings.uncounted.append(f"ZeRO stage {stage}: ranks shard as stage 3 does, or one GPU has all")
    parts = [
        *(["the optimizer"] if optimizer in _OFFLOADING else []),
        *(["weights"] if weights in _OFFLOADING else []),
    ]
    if parts:
        settings.said.append(f"{' and '.join(parts)} offloaded (a plan may do so)")


def _device(zero: Keys, section: str, old: str) -> str | None:
    """Return the device that a section of ZeRO names. old: a key that said the same, true for the CPU."""
    return zero.section(section).text("device") or ("cpu" if zero.flag(old) else None)
