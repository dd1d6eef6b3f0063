"""Forward passes alone: eager PyTorch's output, within a budget that the weights alone exceed."""

from __future__ import annotations

from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import MemplanError
from memplan.graphs.machine import Links, Machine
from torch import Tensor, nn

LINKS = Machine(links=Links(1e9, 1e9))


class Teacher(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 32))
            for _ in range(layers)
        )
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + layer(x)
        return {"hidden": x, "logits": self.norm(x)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("at_first_call", [True, False])
def test_the_output_is_that_of_the_module_in_its_mode(training: bool, at_first_call: bool) -> None:
    one, other = Teacher().train(training), Teacher().train(training)
    example = () if at_first_call else (torch.randn(5, 32),)
    step: Any = memplan.optimize(one, *example, budget="100%", train=False)
    for length in (5, 5, 3):
        x = torch.randn(length, 32)
        numbers = torch.get_rng_state()
        found = step(x)
        drawn = torch.get_rng_state()
        torch.set_rng_state(numbers)
        with torch.no_grad():
            wanted = other(x)
        assert torch.equal(drawn, torch.get_rng_state())
        assert found.keys() == wanted.keys()
        assert all(map(torch.equal, found.values(), wanted.values()))
        assert not found["logits"].requires_grad
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert [plan.iterations for plan in step.report().plans] == [1, 2]


def test_weights_come_layer_by_layer_where_they_do_not_fit() -> None:
    module = Teacher(12).eval()
    weights = sum(parameter.nbytes for parameter in module.parameters())
    x = torch.randn(4, 32)
    with torch.no_grad():
        wanted = module(x)["logits"]
    step: Any = memplan.optimize(module, x, budget=weights // 2, machine=LINKS, train=False)
    assert all(torch.equal(step(x)["logits"], wanted) for _ in range(3))
    assert step.report().plans[0].predicted_peak <= weights // 2


def test_named_outputs_alone_are_kept() -> None:
    step: Any = memplan.optimize(Teacher().eval(), budget="100%", train=False, return_outputs=("logits",))
    found = step(torch.randn(4, 32))
    assert found["hidden"] is None
    assert found["logits"].shape == (4, 32)


def test_a_module_in_another_mode_is_refused() -> None:
    module = Teacher().eval()
    step: Any = memplan.optimize(module, torch.randn(4, 32), budget="100%", train=False)
    module.train()
    with pytest.raises(MemplanError, match="training is True"):
        step(torch.randn(4, 32))


def test_a_function_that_scores() -> None:
    @memplan.optimize(budget="100%", train=False)
    def scores(policy: nn.Module, reference: nn.Module, x: Tensor) -> Tensor:
        return policy(x)["logits"] - reference(x)["hidden"]

    policy, reference, x = Teacher().eval(), Teacher(2).eval(), torch.randn(4, 32)
    found = scores(policy, reference, x)
    assert torch.equal(found, (policy(x)["logits"] - reference(x)["hidden"]).detach())
    assert not found.requires_grad
