"""Random numbers in a checkpoint that ranks save together: each rank goes on with its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.training.checkpoints.checkpoint import load, save
from memplan.training.checkpoints.holding import Holding
from memplan.training.checkpoints.random_numbers import random_numbers
from torch import Tensor, nn


class Rank(Holding):
    """One of several ranks, of which all hold whole tensors. seeds: of the generators of each rank."""

    def __init__(self, rank: int, *seeds: int) -> None:
        self.rank, self.size, self._seeds = rank, len(seeds), seeds

    def random_numbers(self) -> list[dict[str, Any]]:
        return [self._seeded(seed) for seed in self._seeds]

    def _seeded(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        return random_numbers()


def drawn(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(3)


@pytest.mark.parametrize("seeds", [(5,), (5, 6), (5, 6, 7)])
def test_each_rank_goes_on_with_its_own_random_numbers(seeds: tuple[int, ...], tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    save(tmp_path, module, holding=Rank(0, *seeds))
    for rank, seed in enumerate(seeds):
        expected = drawn(seed)
        torch.manual_seed(0)
        load(tmp_path, module, holding=Rank(rank, *seeds))
        assert torch.equal(torch.randn(3), expected)
