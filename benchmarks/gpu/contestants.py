"""Others' ways to train in less memory: each makes a model and its optimizer ready for a plain loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from memplan.graphs.errors import InputError
from memplan.model.iteration import Iteration
from torch import nn
from torch._functorch import config
from torch.utils.checkpoint import checkpoint

LEARNING_RATE = 1e-4

WAYS = ("checkpoint", "save_on_cpu", "compile", "fsdp2_offload", "deepspeed_zero3")
"""In the order of their importance."""


class Ready(NamedTuple):
    """run: one iteration, weights updated. note: what else the reader of its row must know."""

    run: Callable[[], None]
    note: str = ""


def refusal(way: str, *, on_cuda: bool) -> str | None:
    """Why this way can't be gone here, one line."""
    if way == "deepspeed_zero3" and find_spec("deepspeed") is None:
        return "DeepSpeed is not installed: pip install deepspeed"
    if way in ("save_on_cpu", "fsdp2_offload", "deepspeed_zero3") and not on_cuda:
        return "needs CUDA: on the CPU what it moves away stays in the same memory"
    return None


def ready(way: str, iteration: Iteration, share: float) -> Ready:
    """Where `refusal` has nothing to say. Raises InputError where the model is not made for this way."""
    module = iteration.module
    if way == "save_on_cpu":
        return _plain_loop(iteration, module, lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
    if way == "checkpoint":
        for layer in layers_of(module):
            forward = layer.forward
            layer.forward = lambda *a, forward=forward, **k: checkpoint(forward, *a, use_reentrant=False, **k)
    if way == "compile":
        config.activation_memory_budget = share
        ready = _plain_loop(iteration, torch.compile(module))
        return ready._replace(note=f"activation_memory_budget {share}: a share of activations alone")
    if way == "fsdp2_offload":
        return _sharded(iteration)
    if way == "deepspeed_zero3":
        return _by_deepspeed(iteration)
    return _plain_loop(iteration, module)


def _plain_loop(
    iteration: Iteration,
    module: Any,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Ready:
    optimizer = torch.optim.AdamW(module.parameters(), LEARNING_RATE, fused=True)

    def run() -> None:
        with context():
            loss = _loss(iteration, module)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Ready(run)


def _loss(iteration: Iteration, module: Any) -> torch.Tensor:
    given: Any = iteration.inputs
    inputs, targets = (given.inputs, (given.targets,)) if hasattr(given, "targets") else (given, ())
    output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    return output.loss if iteration.loss_fn is None else iteration.loss_fn(output, *targets)


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Of the outermost lists of layers. Raises InputError where there is none."""
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    inner = {id(below) for part in lists for below in part.modules() if below is not part}
    found = [layer for part in lists if id(part) not in inner for layer in part]
    if not found:
        raise InputError("the model has no list of layers")
    return found


def _sharded(iteration: Iteration) -> Ready:
    """FSDP2 in one process: weights, gradients and states on the host, fetched layer by layer."""
    from torch.distributed import init_process_group
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    module = iteration.module.cpu()
    for layer in layers_of(module):
        fully_shard(layer, offload_policy=CPUOffloadPolicy())
    fully_shard(module, offload_policy=CPUOffloadPolicy())
    return _plain_loop(iteration, module)


def _by_deepspeed(iteration: Iteration) -> Ready:
    """ZeRO-3 with weights and states on the host. Its optimizer is its own AdamW for the CPU."""
    import deepspeed  # pyright: ignore[reportMissingImports]

    offloaded = {"device": "cpu", "pin_memory": True}
    half = next(iteration.module.parameters()).dtype == torch.bfloat16
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": half},
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "offload_optimizer": offloaded, "offload_param": offloaded},
    }
    engine, *_ = deepspeed.initialize(
        model=iteration.module, model_parameters=iteration.module.parameters(), config=settings
    )

    def run() -> None:
        engine.backward(_loss(iteration, engine))
        engine.step()

    return Ready(run)
