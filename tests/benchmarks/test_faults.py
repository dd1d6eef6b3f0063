"""A seeded sample of faults in training on the simulated device: benchmarks/faults.py, fewer iterations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from faulting import trial
from faulting.kinds import KINDS
from faulting.models import MODELS
from faulting.run import SHORT, WRONG, run

SMALL = "U-Net with batch norms"
SAMPLE = ("three quarters of the host memory", "an allocation on the device fails once", "half of the disk")
"""What planning finds, what an iteration finds, and what is below the host."""


@pytest.mark.parametrize("kind", SAMPLE)
def test_training_goes_on_when_the_machine_is_not_as_planned(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SOLVER", "joint")
    monkeypatch.setattr(trial, "SECONDS", 0.3)
    row = run(KINDS[kind], SMALL, 1, 6)
    assert not row.outcome.startswith(WRONG), row


@pytest.mark.scripts
@pytest.mark.sampled(8)
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_of_fault(kind: str, model: str) -> None:
    row = run(KINDS[kind], model, 1, SHORT)
    assert not row.outcome.startswith(WRONG), row
