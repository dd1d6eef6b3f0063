"""Around the code of its schedule a step takes no memory of the device, which a plan may leave full there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.machine import Link, Links, Machine
from ranks import ranks
from sharded_models import batch, make
from sharded_training import adamw, planned_step
from torch import Tensor, nn

NODE = Machine(host_capacity=2**30, links=Links(Link(1e9, 1e-6), Link(1e9, 1e-6)))


def bytes_around(step: Any, given: dict[str, Tensor]) -> int:
    """Return the peak of an iteration whose schedule is not run: its results are those of one before."""
    (plan,) = step.plans
    run, found = plan._run, list[Sequence[Tensor]]()  # pyright: ignore[reportPrivateUsage]

    def kept(*arguments: Any) -> Sequence[Tensor]:
        found.append(run(*arguments))
        return found[0]

    plan._run = kept
    step(**given)
    if plan.cycle is not None:
        plan.cycle.end_jobs()
    plan._run = lambda *_, **_named: found[0]
    return live_peak(lambda: step(**given)).peak_bytes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
@pytest.mark.parametrize("host", [False, True])
def test_counting_steps_takes_no_memory(options: dict[str, Any], host: bool) -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    optimizer = torch.optim.AdamW(module.parameters(), **options)
    given = {"input": torch.ones(4, 8)}
    step = memplan.optimize(
        module,
        given,
        budget="100%",
        machine=NODE if host else None,
        optimizer=optimizer,
        loss_fn=lambda output: output.square().mean(),
        time_limit=1,
        cache=False,
    )
    for _ in range(3):
        step(**given)
    assert bytes_around(step, given) == 0
    assert [float(row["step"]) for row in optimizer.state.values()] == [5.0] * 10


def on_ranks(rank: int) -> list[int]:
    module, given = make("gpt2"), batch("gpt2", rank, 0)
    optimizer = adamw(module)
    step = planned_step(module, optimizer, given, "22%", machine=NODE)
    for _ in range(3):
        step(**given)
    counts = {int(row["step"]) for row in optimizer.state.values()}
    return [bytes_around(step, given), *counts]


@pytest.mark.scripts
def test_agreement_of_ranks_takes_no_memory(tmp_path: Path) -> None:
    assert ranks(on_ranks, tmp_path, size=3) == [[0, 3]] * 3
