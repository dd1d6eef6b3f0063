"""Plans of several ranks from the plan cache: measured and solved once, with the bits of the first run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import communicating_models
import memplan
import pytest
import sharded_models
import torch
from communicating_models import Mlps
from memplan.devices.sharded.local_tensors import local_tensor
from ranks import ranks
from sharded_training import adamw, mesh_of
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

pytestmark = pytest.mark.scripts

Made = tuple[nn.Module, dict[str, Tensor], dict[str, Any]]
"""A module, a batch, and the options that say how ranks hold it."""


def by_shards(rank: int, size: int) -> Made:
    return sharded_models.make("gpt2"), sharded_models.batch("gpt2", rank, 0), {"shard": mesh_of(size)}


def by_own_collectives(rank: int, size: int) -> Made:
    return communicating_models.make("sequence", size), communicating_models.batch("sequence", rank, 0), {}


def trained(made: Made, folder: str, budget: str = "80%") -> tuple[set[str], list[Tensor]]:
    """Train and evaluate by a plan; return its phases, and losses and weights."""
    module, given, options = made
    phases = list[str]()
    step = memplan.optimize(
        module,
        given,
        budget=budget,
        optimizer=adamw(module),
        cache=folder,
        time_limit=4,
        progress=lambda event: phases.append(event.phase),
        **options,
    )
    found = [step(**given).detach() for _ in range(3)]
    found.append(step.evaluate(**given).loss)
    weights = (local_tensor(x) if isinstance(x, DTensor) else x for x in module.parameters())
    return set(phases), [*found, *(each.detach().clone() for each in weights)]


def twice(rank: int, size: int, make: Callable[[int, int], Made], folder: str) -> Any:
    rows = [trained(make(rank, size), f"{folder}/{rank}") for _ in range(2)]
    (first, known), (second, found) = rows
    return first, second, all(map(torch.equal, known, found)), Path(folder, str(rank)).exists()


@pytest.mark.parametrize("make", [by_shards, by_own_collectives])
def test_what_rank_0_has_kept_is_the_plan_of_all(tmp_path: Path, make: Callable[[int, int], Made]) -> None:
    rows = ranks(twice, tmp_path, 2, make, str(tmp_path / "cache"), size=2)
    for rank, (first, second, equal, kept) in enumerate(rows):
        assert {"trace", "measure"} <= first
        assert ("solve" in first) == (rank == 0)
        assert second == {"trace", "train"}
        assert equal
        assert kept == (rank == 0)


class AddedUp(Mlps):
    """Layers whose loss is added up over the ranks, whose batches may have other lengths."""

    def forward(self, x: Tensor) -> Tensor:
        return communicating_models.functional.all_reduce(super().forward(x), "sum", [0, 1])


def with_longer_batches(rank: int, size: int, folder: str) -> Any:
    rows = list[set[str]]()
    for length in (3, 3, 5):
        torch.manual_seed(0)
        given = {"x": torch.ones(length if rank else 3, communicating_models.WIDE)}
        rows.append(trained((AddedUp(), given, {}), folder, "100%")[0])
    return rows


def test_other_bytes_on_another_rank_are_another_plan(tmp_path: Path) -> None:
    rows = ranks(with_longer_batches, tmp_path, 2, str(tmp_path / "cache"), size=2)
    for first, second, third in rows:
        assert "measure" in first
        assert "measure" not in second
        assert "measure" in third
