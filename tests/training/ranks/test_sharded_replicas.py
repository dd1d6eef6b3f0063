"""Sharded training with replicas (HSDP): four ranks, two replicas of two, train with FSDP2's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.machine import Link, Links, Machine
from ranks import ranks
from sharded_models import batch, make
from sharded_training import (
    Policies,
    adamw,
    by_fsdp,
    by_plan,
    differences,
    mesh_of,
    planned_step,
    wrapped,
)
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard

pytestmark = pytest.mark.scripts

STEPS = 5
SHAPE = (2, 2)
NODE = Machine(host_capacity=2**30, links=Links(Link(1e9, 1e-6), Link(1e9, 1e-6)))


def batches_of(rank: int, kind: str, count: int = STEPS) -> list[dict[str, Tensor]]:
    return [batch(kind, rank, number) for number in range(count)]


def both(
    rank: int, kind: str, given: str, budget: str, most: float | None, every: int
) -> tuple[dict[str, float], bool, int, int]:
    """Train by FSDP2 and by a plan, on one mesh; return what differs, and the peak, measured and planned.

    given: `module`, a plain one with `shard=`; `host`, the same with a host for optimizer states; `wrapped`,
    one of fully_shard; `mixed`, with its policy.
    """
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    policies = Policies(low, low) if given == "mixed" else None
    batches = batches_of(rank, kind)
    known = by_fsdp(kind, SHAPE, batches, most=most, every=every, policies=policies)
    whole = given in ("module", "host")
    module = make(kind) if whole else wrapped(make(kind), SHAPE, policies)
    optimizer = adamw(module)
    options: dict[str, Any] = {} if most is None else {"max_grad_norm": most}
    options |= {"machine": NODE} if given == "host" else {}
    step = planned_step(
        module,
        optimizer,
        batches[0],
        budget,
        shard=mesh_of(SHAPE) if whole else None,
        gradient_accumulation_steps=every,
        **options,
    )
    trained, peak = by_plan(step, module, optimizer, batches, clips=most is not None, every=every)
    placed = all(
        isinstance(each, DTensor) and each.placements == (Replicate(), Shard(0))
        for each in module.parameters()
    )
    return differences(known, trained), placed, peak, step.plan.figures.peak


@pytest.mark.parametrize(
    ("kind", "given", "budget", "most", "every"),
    [
        ("gpt2", "module", "70%", None, 1),
        ("gpt2", "wrapped", "70%", None, 1),
        ("lora", "module", "80%", None, 1),
        ("lora", "wrapped", "80%", 0.5, 1),
        ("llama", "mixed", "80%", None, 1),
        ("gpt2", "module", "80%", 0.5, 2),
        ("gpt2", "host", "22%", None, 1),
    ],
)
def test_replicas_train_as_by_fsdp2_bit_by_bit(
    tmp_path: Path, kind: str, given: str, budget: str, most: float | None, every: int
) -> None:
    """Norms count each share once, although two ranks hold it."""
    for row in ranks(both, tmp_path, kind, given, budget, most, every, size=4):
        assert not isinstance(row, str), row
        apart, placed, peak, planned = row
        assert apart == {}
        assert placed
        assert peak <= planned
