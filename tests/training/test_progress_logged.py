"""What `memplan.optimize` logs under the logger `memplan`, and says of its first iterations."""

from __future__ import annotations

import logging
from pathlib import Path

import memplan
import pytest
import torch
from torch import nn


@pytest.mark.scripts
def test_planning_is_logged_and_so_is_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def planned() -> str:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        caplog.clear()
        with caplog.at_level(logging.INFO, "memplan"):
            memplan.optimize(
                model, torch.ones(4, 8), budget="100%", loss_fn=torch.sum, cache=tmp_path, progress=False
            )
        return caplog.text

    first, second = planned(), planned()
    for phase in ("trace", "measure", "solve"):
        assert f"{phase} took " in first
    assert f"plan cache {tmp_path}: no plan of this program, options and machine is there" in first
    assert f"plan cache {tmp_path}: the plan is in " in first
    assert f"plan cache {tmp_path}: a plan of this program, options and machine is there" in second
    assert "solve took " not in second
    assert "planned " in second
    assert all(record.name.startswith("memplan.") for record in caplog.records)


def test_times_of_the_first_iterations_are_marked() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.ones(4, 8)
    step = memplan.optimize(model, inputs, budget="100%", loss_fn=torch.sum, progress=False, states=0)
    for _ in range(4):
        step(inputs).backward()
    early = step.report()
    assert early.plans[0].warm_up
    assert "s (warm-up)  " in str(early)
    for _ in range(12):
        step(inputs).backward()
    late = step.report()
    assert not late.plans[0].warm_up
    assert "warm-up" not in str(late)
