"""A seeded sample of faults on one of two ranks: benchmarks/faults.py --ranks 2, fewer iterations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from faulting.models import MODELS
from faulting.on_ranks import BUDGETS, DDP, FSDP, run_on_ranks
from faulting.rank_kinds import RANK_KINDS
from faulting.run import SHORT, WRONG

pytestmark = pytest.mark.scripts  # two processes each


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """Return the folder of what eager PyTorch has found."""
    with TemporaryDirectory() as made:
        yield made


def test_ranks_agree_on_a_plan_for_the_one_with_less_host_memory(folder: str) -> None:
    kind = RANK_KINDS["half of the host memory on the first rank"]
    row = run_on_ranks(kind, FSDP, "LSTM", 1, 6, folder)
    assert not row.outcome.startswith(WRONG), row


def test_a_rank_with_a_plan_of_its_own_repeats_an_iteration_without_memory(folder: str) -> None:
    """Before the first average: the others wait for it, and do not plan."""
    kind = RANK_KINDS["the first operation on a rank finds no memory"]
    row = run_on_ranks(kind, DDP, "LSTM", 1, 6, folder)
    assert row.outcome == "goes on, replans", row


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("way", list(BUDGETS))
@pytest.mark.parametrize("kind", list(RANK_KINDS))
def test_each_kind_of_fault_on_a_rank(kind: str, way: str, model: str, folder: str) -> None:
    row = run_on_ranks(RANK_KINDS[kind], way, model, 1, SHORT, folder)
    assert not row.outcome.startswith(WRONG), row
