"""Sharded training by FSDP2, and comparisons with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import memplan
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.devices.storage.offloaded import hold_of
from not_none import not_none
from sharded_models import layers, make
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

COUNT = 4
"""Bytes of AdamW's count of steps, which each parameter has outside of plans."""


class Trained(NamedTuple):
    """A module after training. norms: of the gradients before clipping, one an update."""

    module: nn.Module
    optimizer: torch.optim.AdamW
    losses: list[Tensor]
    norms: list[Tensor]


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([each for each in module.parameters() if each.requires_grad], lr=0.01)


def planned_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    first: dict[str, Tensor],
    budget: str,
    **options: Any,
) -> Any:
    """Plan a sharded step in a second. first: a batch."""
    quick: dict[str, Any] = {"solver": "joint", "time_limit": 1, "cache": False, "shard": True}
    return memplan.optimize(module, first, budget=budget, optimizer=optimizer, **{**quick, **options})


class Policies(NamedTuple):
    """Mixed precision of the layers, and of the rest of the module."""

    layers: MixedPrecisionPolicy
    root: MixedPrecisionPolicy


Size = int | tuple[int, int]
"""Number of ranks, or of replicas and of ranks in each."""


def mesh_of(size: Size) -> DeviceMesh:
    if isinstance(size, int):
        return init_device_mesh("cpu", (size,))
    return init_device_mesh("cpu", size, mesh_dim_names=("replicate", "shard"))


def wrapped(module: nn.Module, size: Size, policies: Policies | None = None, **options: Any) -> nn.Module:
    """Shard a module by FSDP2, each layer a unit."""
    policies = policies or Policies(MixedPrecisionPolicy(), MixedPrecisionPolicy())
    mesh = mesh_of(size)
    for layer in layers(module):
        fully_shard(layer, mesh=mesh, **{"mp_policy": policies.layers, **options})
    fully_shard(module, mesh=mesh, **{"mp_policy": policies.root, **options})
    return module


def by_fsdp(
    kind: str,
    size: Size,
    batches: Iterable[dict[str, Tensor]],
    *,
    most: float | None = None,
    every: int = 1,
    policies: Policies | None = None,
) -> Trained:
    """Train by FSDP2. most: the norm to clip to. every: batches per update."""
    module = wrapped(make(kind), size, policies)
    optimizer, losses, norms = adamw(module), list[Tensor](), list[Tensor]()
    for number, batch in enumerate(batches, 1):
        loss = module(**batch).loss
        (loss / every if every > 1 else loss).backward()
        losses.append(loss.detach())
        if number % every:
            continue
        if most is not None:
            norms.append(whole(nn.utils.clip_grad_norm_(module.parameters(), most)))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(module, optimizer, losses, norms)


def by_plan(
    step: Any,
    module: nn.Module,
    optimizer: torch.optim.AdamW,
    batches: Sequence[dict[str, Tensor]],
    *,
    clips: bool = False,
    every: int = 1,
) -> tuple[Trained, int]:
    """Train by a planned step; return also the peak in bytes of what the plan counts.

    clips: whether the step clips gradients. every: batches per update.
    """
    losses, norms = list[Tensor](), list[Tensor]()

    def train() -> None:
        for number, each in enumerate(batches, 1):
            losses.append(step(**each).detach())
            if clips and not number % every:
                norms.append(not_none(step.grad_norm))
        for plan in step.plans:
            not_none(plan.cycle).end_jobs()

    counted = live_peak(train).peak_bytes
    stay = [each for each in module.buffers() if hold_of(each) is None]
    held = share_bytes(module) + sum(each.nbytes for each in (*batches[0].values(), *stay))
    outside = COUNT * len(optimizer.state) + sum(each.nbytes for each in (*losses, *norms))
    return Trained(module, optimizer, losses, norms), counted + held - outside


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor of all ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def share_bytes(module: nn.Module) -> int:
    """Return the bytes of this rank's shares of the weights, but for those that a plan moves."""
    shares = [local_tensor(each) for each in module.parameters()]
    return sum(each.untyped_storage().nbytes() for each in shares if hold_of(each) is None)


def error(known: Tensor, other: Tensor) -> float:
    """Return the largest difference over the largest number; 0 for equal bits."""
    if isinstance(known, DTensor):
        assert isinstance(other, DTensor)
        known, other = known.full_tensor(), other.full_tensor()
    if torch.equal(known, other):
        return 0.0
    return float((known - other).abs().max() / known.abs().max())


def differences(known: Trained, other: Trained) -> dict[str, float]:
    """Return by name the errors of losses, norms, weights and states; equal bits are left out."""
    assert len(known.losses) == len(other.losses)
    assert len(known.norms) == len(other.norms)
    numbers = [*zip(known.losses, other.losses, strict=True), *zip(known.norms, other.norms, strict=True)]
    found = {f"loss or norm {n}": error(one, own) for n, (one, own) in enumerate(numbers)}
    weights = other.module.state_dict()
    found |= {name: error(each, weights[name]) for name, each in known.module.state_dict().items()}
    rows = (each.optimizer.state_dict()["state"] for each in (known, other))
    for (number, row), (_, own) in zip(*(each.items() for each in rows), strict=True):
        found |= {f"{number}.{name}": error(each, own[name]) for name, each in row.items()}
    return {name: each for name, each in found.items() if each}
