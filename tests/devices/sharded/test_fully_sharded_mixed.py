"""Modules that fully_shard has wrapped with a policy of mixed precision: trained with FSDP2's bits."""

from __future__ import annotations

from pathlib import Path

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from ranks import ranks
from sharded_models import batch, make
from sharded_training import (
    COUNT,
    Policies,
    Trained,
    adamw,
    by_fsdp,
    differences,
    error,
    planned_step,
    share_bytes,
    wrapped,
)
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

pytestmark = pytest.mark.scripts

STEPS = 5
LOW, WIDE = torch.bfloat16, torch.float32

BF16, WIDE_SUMS = MixedPrecisionPolicy(LOW), MixedPrecisionPolicy(LOW, WIDE)
POLICIES = {
    "bf16": Policies(BF16, BF16),
    "sums in float32": Policies(WIDE_SUMS, WIDE_SUMS),
    "output in float32": Policies(BF16, MixedPrecisionPolicy(LOW, LOW, WIDE)),
    "inputs as they are": Policies(*2 * [MixedPrecisionPolicy(LOW, WIDE, cast_forward_inputs=False)]),
    "layers alone": Policies(WIDE_SUMS, MixedPrecisionPolicy()),
}


def taken(
    rank: int, size: int, kind: str, policy: str, budget: str, most: float | None
) -> tuple[dict[str, float], int, int]:
    """Train by FSDP2, and by a plan of what fully_shard has made."""
    batches = [batch(kind, rank, number) for number in range(STEPS)]
    known = by_fsdp(kind, size, batches, most=most, policies=POLICIES[policy])
    module = wrapped(make(kind), size, POLICIES[policy])
    optimizer, losses, norms = adamw(module), list[Tensor](), list[Tensor]()
    step = planned_step(module, optimizer, batches[0], budget, shard=None, time_limit=3, max_grad_norm=most)

    def run() -> None:
        for each in batches:
            losses.append(step(**each).detach())
            if most is not None:
                assert step.grad_norm is not None
                norms.append(step.grad_norm)
        cycle = step.plans[0].cycle
        assert cycle is not None
        cycle.end_jobs()

    held = share_bytes(module) + sum(each.nbytes for each in (*batches[0].values(), *module.buffers()))
    peak = live_peak(run).peak_bytes + held
    peak -= COUNT * len([each for each in module.parameters() if each.requires_grad])
    peak -= sum(each.nbytes for each in (*losses, *norms))
    gathered = {each.dtype for each in step.plans[0].program.values if each.dtype.is_floating_point}
    assert LOW in gathered
    assert all(each.dtype == WIDE for each in module.parameters())
    assert not any(isinstance(each, FSDPModule) for each in module.modules())
    apart = differences(known, Trained(module, optimizer, losses, norms))
    return apart, peak, step.plan.figures.peak


@pytest.mark.parametrize(
    ("kind", "policy", "budget", "most"),
    [
        ("gpt2", "bf16", "85%", None),
        ("gpt2", "sums in float32", "85%", 0.3),
        ("lora", "bf16", "80%", 0.3),
        ("vit", "sums in float32", "80%", None),
        ("vit", "output in float32", "80%", None),
        ("llama", "inputs as they are", "80%", None),
        ("titan", "layers alone", "85%", 0.3),
    ],
)
def test_mixed_precision_is_fsdp2s_bit_by_bit(
    tmp_path: Path, kind: str, policy: str, budget: str, most: float | None
) -> None:
    for row in ranks(taken, tmp_path, 2, kind, policy, budget, most):
        assert not isinstance(row, str), row
        apart, peak, planned = row
        assert apart == {}
        assert peak <= planned


def on_four(rank: int, size: int) -> float:
    """Train by FSDP2 and by a plan; return the largest error."""
    batches = [batch("gpt2", rank, number) for number in range(STEPS)]
    known = by_fsdp("gpt2", size, batches, policies=POLICIES["sums in float32"])
    module = wrapped(make("gpt2"), size, POLICIES["sums in float32"])
    optimizer = adamw(module)
    step = planned_step(module, optimizer, batches[0], "85%", shard=None)
    losses = [step(**each).detach() for each in batches]
    return max(differences(known, Trained(module, optimizer, losses, [])).values(), default=0.0)


def test_on_four_ranks_it_differs_by_rounding_alone(tmp_path: Path) -> None:
    """Gloo adds gradients of more than two ranks up in another order if they are cut otherwise."""
    for row in ranks(on_four, tmp_path, 4, size=4):
        assert not isinstance(row, str), row
        assert row <= 1e-6


def midway(rank: int, size: int) -> tuple[str, dict[str, float]]:
    """Find no plan, train by FSDP2, and go on by a plan of two batches per update; evaluate."""
    batches, policies = [batch("gpt2", rank, number) for number in range(6)], POLICIES["bf16"]
    known = by_fsdp("gpt2", size, batches, most=0.3, every=2, policies=policies)
    module, said = wrapped(make("gpt2"), size, policies), ""
    optimizer, losses, norms = adamw(module), list[Tensor](), list[Tensor]()
    try:
        planned_step(module, optimizer, batches[0], "1%", shard=None)
    except memplan.MemplanError as found:
        said = str(found)
    for each in batches[:2]:
        loss = module(**each).loss
        (loss / 2).backward()
        losses.append(loss.detach())
    norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3))
    optimizer.step()
    optimizer.zero_grad()
    options = {"shard": None, "gradient_accumulation_steps": 2, "max_grad_norm": 0.3}
    step = planned_step(module, optimizer, batches[2], "90%", **options)
    for number, each in enumerate(batches[2:]):
        losses.append(step(**each).detach())
        if number % 2:
            norms.append(step.grad_norm)
    norms[0] = norms[0].full_tensor()  # pyright: ignore
    apart = differences(known, Trained(module, optimizer, losses, norms))
    with torch.no_grad():
        apart["evaluated"] = error(known.module(**batches[0]).loss, step.evaluate(**batches[0]).loss)
    return said, {name: each for name, each in apart.items() if each}


def test_a_plan_goes_on_where_fsdp2_has_begun_and_sums_in_float32(tmp_path: Path) -> None:
    for row in ranks(midway, tmp_path, 2):
        assert not isinstance(row, str), row
        said, apart = row
        assert "budget" in said
        assert apart == {}
