"""Full weights between iterations: gathered if they are missing or older than their shares, and only then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from memplan.graphs.machine import Memory
from memplan.runtime.codegen.copies import variable
from memplan.runtime.run import spread_ownership
from memplan.runtime.run.spread_ownership import SpreadOwnership
from torch import Tensor

FULL = variable(Memory.DEVICE, 0)


class Shards:
    """Shares that are the whole weight. gathers: how many there were."""

    def __init__(self) -> None:
        self.ranks, self.gathers = SimpleNamespace(lost=""), 0

    def take_over(self, _owner: object) -> dict[str, Any]:
        return {}

    def of_weight(self, _name: str, weight: Tensor) -> Tensor:
        return weight

    def gather(self, pair: tuple[Tensor, Tensor]) -> None:
        share, full = pair
        full.copy_(share)
        self.gathers += 1


def test_a_full_weight_is_gathered_if_it_is_missing_or_older_than_its_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spread_ownership, "version_of_share", lambda weight: (weight._version, 0))
    weight, shards, held = torch.zeros(2), Shards(), dict[str, Any]()
    cycle = SimpleNamespace(
        graph=SimpleNamespace(tensors=SimpleNamespace(spread={0}, bytes=[8])),
        places=[(Memory.DEVICE, 0)],
        held=held,
        device=SimpleNamespace(room=lambda size: torch.empty(size // 4)),
        end_jobs=lambda: None,
    )
    values = [SimpleNamespace(storage=0)]
    program = SimpleNamespace(parameters={"w": 0}, values=values, storages=[], operations=[], states={})
    owners = {0: ("w", lambda: weight)}
    ownership = SpreadOwnership(*cast("Any", (program, owners, cycle, shards)))

    def gathers() -> int:
        ownership.take()
        assert torch.equal(held[FULL], weight)
        ownership.note()
        return shards.gathers

    assert [gathers(), gathers()] == [1, 1]
    weight.add_(1)  # as load_state_dict does
    assert [gathers(), gathers()] == [2, 2]
    del held[FULL]
    assert [gathers(), gathers()] == [3, 3]
