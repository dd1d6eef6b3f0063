"""How far an update over several batches has come: noted in the optimizer's groups, so that it is saved and
loaded with them. Only there in the midst of an update."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

SUM = "sum"
"""The state that each weight's gradients are summed in. Between updates it is of no meaning."""

_KEY = "accumulated"


class Accumulated(NamedTuple):
    """batches: in the sums of gradients, of how many in an update. new: the optimizer's own states are of
    this update. rank: of the process whose gradients they are, among so many (size)."""

    batches: int
    of: int
    new: bool
    rank: int = 0
    size: int = 1


def accumulated(optimizer: torch.optim.Optimizer) -> Accumulated | None:
    """None between updates."""
    noted: Any = optimizer.param_groups[0].get(_KEY)
    return None if noted is None else Accumulated(**noted)


def note_accumulated(optimizer: torch.optim.Optimizer, now: Accumulated | None) -> None:
    for group in optimizer.param_groups:
        group.pop(_KEY, None)
        if now is not None:
            group[_KEY] = now._asdict()
