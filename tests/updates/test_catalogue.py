"""What must stay as it was in an optimizer's group: each change is named, and what is the same is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memplan.graphs.errors import MismatchError
from memplan.updates.catalogue import check_fixed, described_groups, fixed
from torch import nn


def checked(change: dict[str, Any], **options: Any) -> None:
    """Change a group of Adam after its plan was made."""
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], **{"lr": 0.1, **options})
    ((described, _group, _first),) = described_groups(optimizer)
    group = optimizer.param_groups[0]
    then = fixed(described, group)
    group.update(change)
    check_fixed(described, group, 3, then)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, {"lr": 0.2}),
        ({}, {"betas": (0.5, 0.6), "eps": 1.0}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.2}),
        ({"foreach": False}, {"foreach": None}),  # on the CPU they are the same
    ],
)
def test_numbers_may_change(options: dict[str, Any], change: dict[str, Any]) -> None:
    checked(change, **options)


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({}, {"amsgrad": True}, "amsgrad is True in group 3 of the optimizer; the plan is for False"),
        ({"weight_decay": 0.1}, {"weight_decay": 0}, "weight_decay is 0 in .*; the plan is for one above 0"),
        ({}, {"weight_decay": 0.5}, "weight_decay is 0.5 in .*; the plan is for one of 0"),
        ({}, {"lr": torch.tensor(0.1)}, r"lr is a tensor of torch.float32 in .*; the plan is for a number"),
        ({}, {"foreach": True}, "foreach is True in .*; the plan is for None"),
        ({}, {"params": [nn.Parameter(torch.ones(2))]}, "group 3 of the optimizer has other parameters"),
    ],
)
def test_what_changes_the_update_is_named(
    options: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    with pytest.raises(MismatchError, match=words):
        checked(change, **options)
