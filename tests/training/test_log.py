"""What `memplan.optimize` logs under the logger `memplan`."""

from __future__ import annotations

import logging
from pathlib import Path

import memplan
import pytest
import torch
from torch import nn


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
