"""Names and places of the tensors that attributes of parameters hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from memplan.graphs.errors import MismatchError
from memplan.model.attached import attached_places, named_buffers, read_attached
from torch import nn


@pytest.fixture
def module() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight: Any = module[0].weight
    weight.state = SimpleNamespace(scales=torch.ones(2), tables=[torch.zeros(1)], rows=2)
    return module


def test_names_say_the_path_and_buffers_come_first(module: nn.Sequential) -> None:
    own = [name for name, _buffer in module.named_buffers()]
    assert list(named_buffers(module)) == [*own, "0.weight.state.scales", "0.weight.state.tables.0"]


def test_tensors_of_the_module_and_of_its_owner_are_left_out(module: nn.Sequential) -> None:
    weight: Any = module[0].weight
    weight.state.bias, weight.state.mean = module[0].bias, module[1].running_mean
    weight.owner, weight.trained = nn.Linear(1, 1), torch.ones(1, requires_grad=True)
    weight.same = weight.state.scales
    assert list(attached_places(module)) == ["0.weight.same", "0.weight.state.tables.0"]


def test_a_place_is_followed_anew(module: nn.Sequential) -> None:
    places = attached_places(module)
    weight: Any = module[0].weight
    weight.state = SimpleNamespace(scales=torch.zeros(2), tables=[torch.ones(1)])
    assert read_attached(places)["0.weight.state.tables.0"] is weight.state.tables[0]
    weight.state.tables = []
    with pytest.raises(
        MismatchError, match=r"0.weight.state.tables.0, a tensor when the plan was made, is None"
    ):
        read_attached(places)
