"""Sharded training in bfloat16 with masters, as FSDP2's; and of T5, as replicas train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from ranks import ranks
from sharded_models import batch, make
from sharded_training import COUNT, Trained, adamw, error, planned_step, share_bytes, wrapped
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

pytestmark = pytest.mark.scripts

STEPS = 5
LOW = torch.bfloat16


def planned(module: nn.Module, kind: str, rank: int, budget: str, **options: Any) -> tuple[Trained, int, int]:
    """Train by a plan; return the peak, measured and planned, too."""
    optimizer, losses = adamw(module), list[Tensor]()
    batches = [batch(kind, rank, number) for number in range(STEPS)]
    step = planned_step(
        module,
        optimizer,
        batches[0],
        budget,
        **options,
    )
    held = share_bytes(module) + sum(each.nbytes for each in (*batches[0].values(), *module.buffers()))

    def train() -> None:
        losses.extend(step(**given).detach() for given in batches)
        cycle = step.plans[0].cycle
        assert cycle is not None
        cycle.end_jobs()

    counted = live_peak(train)
    outside = COUNT * len(optimizer.state) + sum(each.nbytes for each in losses)
    peak = counted.peak_bytes + held - outside
    return Trained(module, optimizer, losses, []), peak, step.plan.figures.peak


def in_bfloat16(rank: int, size: int, kind: str, spread: bool) -> tuple[dict[str, float], int, int]:
    """Train with masters in float32, and by FSDP2 from the same values. spread: by fully_shard already."""
    known = wrapped(make(kind).to(LOW).float(), size, mp_policy=MixedPrecisionPolicy(param_dtype=LOW))
    optimizer, losses = adamw(known), list[Tensor]()
    for number in range(STEPS):
        loss = known(**batch(kind, rank, number)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    module = make(kind).to(LOW)
    shard = None if spread else True
    module = wrapped(module, size) if spread else module
    found, peak, limit = planned(module, kind, rank, "80%", master_weights=True, shard=shard)
    apart = {f"loss {n}": error(a, b) for n, (a, b) in enumerate(zip(losses, found.losses, strict=True))}
    own = dict(found.module.named_parameters())
    for name, master in known.named_parameters():
        row, known_row = found.optimizer.state[own[name]], optimizer.state[master]
        apart |= {f"{name}.master": error(master.detach(), row["master"])}
        apart |= {f"{name}.{state}": error(each, row[state]) for state, each in known_row.items()}
        apart |= {name: error(master.detach().to(LOW), own[name].detach())}
    return {name: each for name, each in apart.items() if each}, peak, limit


@pytest.mark.parametrize(("kind", "spread"), [("gpt2", False), ("llama", False), ("llama", True)])
def test_masters_are_fsdp2s(tmp_path: Path, kind: str, spread: bool) -> None:
    for row in ranks(in_bfloat16, tmp_path, 2, kind, spread):
        assert not isinstance(row, str), row
        apart, peak, limit = row
        assert apart == {}
        assert peak <= limit


def t5(rank: int, size: int) -> tuple[dict[str, float], int, int]:
    """Train T5 by a plan, and eagerly on each rank, with gradients averaged as the plan does."""
    known = make("t5")
    optimizer, losses = adamw(known), list[Tensor]()
    for number in range(STEPS):
        loss = known(**batch("t5", rank, number)).loss
        loss.backward()
        for parameter in known.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(size)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    found, peak, limit = planned(make("t5"), "t5", rank, "70%")
    module, other, own_losses, _norms = found
    apart = {f"loss {n}": error(a, b) for n, (a, b) in enumerate(zip(losses, own_losses, strict=True))}
    weights = module.state_dict()
    apart |= {name: error(each, weights[name].full_tensor()) for name, each in known.state_dict().items()}
    rows = zip(optimizer.state_dict()["state"].items(), other.state_dict()["state"].values(), strict=True)
    for (number, row), own in rows:
        for name, each in row.items():
            state = own[name] if name == "step" else own[name].full_tensor()
            apart |= {f"{number}.{name}": error(each, state)}
    return {name: each for name, each in apart.items() if each}, peak, limit


def test_t5_trains_as_replicas_do(tmp_path: Path) -> None:
    for row in ranks(t5, tmp_path, 2):
        assert not isinstance(row, str), row
        apart, peak, limit = row
        assert apart == {}
        assert peak <= limit
