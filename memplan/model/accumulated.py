"""Progress of an update over several batches, noted in the optimizer's groups, so that it is saved and
loaded with them. It is there only in the midst of an update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

SUM = "gradient_sum"
"""The state that each weight's gradients are summed in. Between updates it is of no meaning."""

OLD_SUM = "sum"
"""Its name in older checkpoints, if saved in the midst of an update; Adagrad has a state of that name."""

_KEY = "accumulated"


class Accumulated(NamedTuple):
    """Progress of an update.

    batches: number of batches in the sums of gradients so far.
    of: number of batches in an update.
    new: the optimizer's own states were made in this update.
    rank: of the process whose gradients they are.
    size: number of processes.
    """

    batches: int
    of: int
    new: bool
    rank: int = 0
    size: int = 1


def accumulated(optimizer: torch.optim.Optimizer) -> Accumulated | None:
    """Return the progress of the update; None between updates."""
    noted: Any = optimizer.param_groups[0].get(_KEY)
    return None if noted is None else Accumulated(**noted)


def forget_sums(optimizer: torch.optim.Optimizer) -> None:
    """Free the sums, and end an update that was begun: the next batch makes them anew."""
    note_accumulated(optimizer, None)
    for row in optimizer.state.values():
        row.pop(SUM, None)


def note_accumulated(optimizer: torch.optim.Optimizer, now: Accumulated | None) -> None:
    for group in optimizer.param_groups:
        group.pop(_KEY, None)
        if now is not None:
            group[_KEY] = now._asdict()
