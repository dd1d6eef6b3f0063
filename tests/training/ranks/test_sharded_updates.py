"""Sharded training that clips gradients by their norm, and adds them up over batches: FSDP2's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
from ranks import ranks
from sharded_models import batch, make
from sharded_training import adamw, by_fsdp, by_plan, differences, planned_step

pytestmark = pytest.mark.scripts

STEPS = 6


def both(
    rank: int, size: int, kind: str, most: float | None, every: int, budget: str
) -> tuple[dict[str, float], int, int]:
    """Train by FSDP2 and by a plan; return what differs, and the peak, measured and planned."""
    batches = [batch(kind, rank, number) for number in range(STEPS)]
    known = by_fsdp(kind, size, batches, most=most, every=every)
    module = make(kind)
    optimizer = adamw(module)
    options: dict[str, Any] = {} if most is None else {"max_grad_norm": most}
    step = planned_step(
        module,
        optimizer,
        batches[0],
        budget,
        gradient_accumulation_steps=every,
        **options,
    )
    trained, peak = by_plan(step, module, optimizer, batches, clips=most is not None, every=every)
    return differences(known, trained), peak, step.plan.figures.peak


@pytest.mark.parametrize(
    ("kind", "most", "every", "budget", "size"),
    [
        ("gpt2", 0.5, 1, "80%", 2),
        ("lora", None, 2, "90%", 2),
        ("gpt2", 0.5, 3, "80%", 2),
        ("llama", 0.5, 2, "80%", 4),
    ],
)
def test_updates_are_fsdp2s(
    tmp_path: Path, kind: str, most: float | None, every: int, budget: str, size: int
) -> None:
    for row in ranks(both, tmp_path, size, kind, most, every, budget, size=size):
        assert not isinstance(row, str), row
        found, peak, planned = row
        assert {name: each for name, each in found.items() if each > (0.0 if size == 2 else 1e-6)} == {}
        assert peak <= planned


def update_alone(rank: int) -> list[str]:
    """Call `update` on one rank alone, then on both."""
    module, lines = make("gpt2"), list[str]()
    step = memplan.optimize(
        module,
        batch("gpt2", rank, 0),
        budget="100%",
        optimizer=adamw(module),
        shard=True,
        solver="joint",
        time_limit=1,
        cache=False,
        gradient_accumulation_steps=4,
    )
    step(**batch("gpt2", rank, 0))
    for call in (
        step.update if rank else lambda: step(**batch("gpt2", rank, 0)),
        lambda: (step if rank else step.evaluate)(**batch("gpt2", rank, 0)),
        step.update,
    ):
        try:
            call()
            lines.append("")
        except memplan.MismatchError as error:
            lines.append(str(error))
    return lines


def test_ranks_that_call_different_things_are_refused_on_all(tmp_path: Path) -> None:
    first, second = ranks(update_alone, tmp_path)
    line = "rank 1 of 2 calls step.update, and not all ranks do: call it on all ranks together, or on none"
    assert first[0] == second[0] == line
    assert first[1] == second[1]
    line = "ranks 0 and 1 make different calls, step.evaluate and step.__call__: all ranks make each call"
    assert first[1].startswith(line)
    assert first[2] == second[2] == ""
