"""PyTorch's optimizers whose updates are planned: weights and states after some steps are theirs, bit by bit.

The oracle is the optimizer itself in an ordinary loop.
"""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from memplan.model.accumulated import OLD_SUM, SUM
from memplan.updates.catalogue import description, is_planned
from torch import nn

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "RMSprop": [
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"centered": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "centered": True, "alpha": 0.9, "eps": 1e-6},
        {"lr": torch.tensor(1e-2)},
    ],
    "Adagrad": [{}, {"weight_decay": 0.1, "lr_decay": 0.01}, {"maximize": True, "eps": 1e-6}],
    "Adadelta": [{}, {"weight_decay": 0.1, "rho": 0.8}, {"maximize": True, "lr": 0.3}],
    "RAdam": [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.8, 0.9), "maximize": True},
        {"betas": (0.8, 0.4)},  # never rectified
    ],
}
CASES = [
    pytest.param(name, {"lr": 1e-2, "foreach": foreach, **options}, id=f"{name}-{number}-{foreach}")
    for name, several in OPTIONS.items()
    for number, options in enumerate(several)
    for foreach in (False, True)
]
STEPS = 8
"""RAdam with its own betas rectifies from the sixth step on."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 6, generator=generator) for _ in range(STEPS)]


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = dict(module.state_dict())
    for name, parameter in module.named_parameters():
        rows = optimizer.state[parameter].items()
        found |= {f"{name}.{state}": tensor for state, tensor in rows if state != SUM}
    return found


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, norm: float | None, every: int) -> None:
    for number, batch in enumerate(batches(), 1):
        (loss_of(module(batch)) / every).backward()
        if number % every == 0:
            if norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()


def planned(module: nn.Module, optimizer: torch.optim.Optimizer, norm: float | None, every: int) -> None:
    step: Any = memplan.optimize(
        module,
        (batches()[0],),
        budget="100%",
        solver="store-all",
        loss_fn=loss_of,
        optimizer=optimizer,
        max_grad_norm=norm,
        gradient_accumulation_steps=every,
        verify=False,
        cache=False,
    )
    for batch in batches():
        step(batch)


def compare(name: str, options: dict[str, Any], norm: float | None = None, every: int = 1) -> None:
    make: Any = getattr(torch.optim, name)
    own, other = network(), network()
    eager, optimizer = make(own.parameters(), **options), make(other.parameters(), **options)
    assert is_planned(optimizer)
    trained(own, eager, norm, every)
    planned(other, optimizer, norm, every)
    expected, found = state_of(own, eager), state_of(other, optimizer)
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(tensor, found[key]), key


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_weights_and_states_are_those_of_the_optimizer(name: str, options: dict[str, Any]) -> None:
    compare(name, options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_clipped_and_accumulated(name: str, every: int) -> None:
    compare(name, {"lr": 1e-2, "weight_decay": 0.1}, norm=0.01, every=every)


@pytest.mark.parametrize("name", OPTIONS)
def test_training_goes_on_from_saved_states(name: str) -> None:
    """Of an optimizer that has stepped by itself, whose states a plan takes over."""
    make: Any = getattr(torch.optim, name)
    own = network()
    eager = make(own.parameters(), lr=1e-2)
    trained(own, eager, None, 1)
    other = network()
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    optimizer = make(other.parameters(), lr=1e-2)
    optimizer.load_state_dict(copy.deepcopy(eager.state_dict()))
    trained(own, eager, None, 1)
    planned(other, optimizer, None, 1)
    for key, tensor in state_of(own, eager).items():
        assert torch.equal(tensor, state_of(other, optimizer)[key]), key


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adagrad", {"initial_accumulator_value": 0.1}), ("Adagrad", {"fused": True}), ("NAdam", {})],
)
def test_what_the_update_functions_lack_steps_after_the_plan(name: str, options: dict[str, Any]) -> None:
    optimizer = getattr(torch.optim, name)(network().parameters(), **options)
    assert not is_planned(optimizer)


@pytest.mark.parametrize("name", OPTIONS)
def test_complex_weights_step_after_the_plan(name: str) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = getattr(torch.optim, name)([weight])
    assert description(optimizer) is not None
    assert not is_planned(optimizer)


def test_sums_of_an_older_checkpoint_are_found() -> None:
    """In the midst of an update they were saved under the name that Adagrad has for a state of its own."""
    own, other = network(), network()
    steps = []
    for module in (own, other):
        optimizer = torch.optim.AdamW(module.parameters(), 1e-2, foreach=False)
        options: Any = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
        options |= {"loss_fn": loss_of, "optimizer": optimizer, "gradient_accumulation_steps": 2}
        steps.append((memplan.optimize(module, (batches()[0],), **options), optimizer))
    for step, _optimizer in steps:
        step(batches()[0])
    for row in steps[1][1].state.values():
        row[OLD_SUM] = row.pop(SUM)
    for step, _optimizer in steps:
        step(batches()[1])
    for weight, expected in zip(other.parameters(), own.parameters(), strict=True):
        assert torch.equal(weight, expected)
