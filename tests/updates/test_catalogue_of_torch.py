"""PyTorch's optimizers whose updates are planned: weights and states after some steps are theirs, bit by bit.

The oracle is the optimizer itself in an ordinary loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from memplan.graphs.errors import InputError, MismatchError
from memplan.model.accumulated import OLD_SUM, SUM
from memplan.updates.catalogue import check_by_element, description, is_planned
from optimizer_loops import Make, batches, compare, compare_loaded, compare_resumed, network, step_of
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
    "NAdam": [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.8, 0.9), "maximize": True, "momentum_decay": 0.1},
        {"lr": torch.tensor(1e-2), "weight_decay": 0.1},
    ],
    "Adafactor": [
        {},
        {"weight_decay": 0.1, "beta2_decay": -0.5},
        {"maximize": True, "eps": (1e-4, 1e-2), "d": 1.5},
        {"lr": torch.tensor(1e-2), "weight_decay": 0.1},
    ],
    "Muon": [
        {},
        {"weight_decay": 0.0, "nesterov": False, "momentum": 0.8},
        {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
        {"lr": torch.tensor(1e-2)},
    ],
}
CASES = [
    pytest.param(name, {"lr": 1e-2, **way, **options}, id=f"{name}-{number}-{way.get('foreach')}")
    for name, several in OPTIONS.items()
    for number, options in enumerate(several)
    for way in ([{}] if name == "Muon" else [{"foreach": False}, {"foreach": True}])
]


def make_of(name: str, **options: Any) -> Make:
    make: Any = getattr(torch.optim, name)
    return lambda module: make(module.parameters(), **options)


def network_for(name: str) -> nn.Module:
    """Muon takes only weights with two dimensions."""
    return network(bias=name != "Muon")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_weights_and_states_are_those_of_the_optimizer(name: str, options: dict[str, Any]) -> None:
    compare(make_of(name, **options), network_for(name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_clipped_and_accumulated(name: str, every: int) -> None:
    compare(make_of(name, lr=1e-2, weight_decay=0.1), network_for(name), norm=0.01, every=every)


@pytest.mark.parametrize("name", OPTIONS)
def test_training_goes_on_from_saved_states(name: str) -> None:
    compare_loaded(make_of(name, lr=1e-2), network_for(name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_checkpoint_goes_on(name: str, tmp_path: Path) -> None:
    compare_resumed(make_of(name, lr=1e-2, weight_decay=0.1), network_for(name), tmp_path)


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adagrad", {"initial_accumulator_value": 0.1}), ("Adagrad", {"fused": True}), ("ASGD", {})],
)
def test_what_the_update_functions_lack_steps_after_the_plan(name: str, options: dict[str, Any]) -> None:
    optimizer = getattr(torch.optim, name)(network().parameters(), **options)
    assert not is_planned(optimizer)


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"Adafactor", "Muon"}))
def test_complex_weights_step_after_the_plan(name: str) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = getattr(torch.optim, name)([weight])
    assert description(optimizer) is not None
    assert not is_planned(optimizer)


def test_sums_of_an_older_checkpoint_are_found() -> None:
    """In the midst of an update they were saved under the name that Adagrad has for a state of its own."""
    own, other = network(), network()
    steps: list[tuple[Any, torch.optim.Optimizer]] = []
    for module in (own, other):
        optimizer = torch.optim.AdamW(module.parameters(), 1e-2, foreach=False)
        steps.append((step_of(module, optimizer, gradient_accumulation_steps=2), optimizer))
    for step, _optimizer in steps:
        step(batches(own)[0])
    for row in steps[1][1].state.values():
        row[OLD_SUM] = row.pop(SUM)
    for step, _optimizer in steps:
        step(batches(own)[1])
    for weight, expected in zip(other.parameters(), own.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_ranks_do_not_share_weights_that_are_updated_as_a_whole() -> None:
    weights = list(network().parameters())
    check_by_element(torch.optim.AdamW(weights), "shard=")
    with pytest.raises(InputError, match="shard=: Adafactor updates a weight as a whole"):
        check_by_element(torch.optim.Adafactor(weights), "shard=")


@pytest.mark.scripts
def test_running_products_that_differ_are_refused() -> None:
    module = network()
    optimizer = torch.optim.NAdam(module.parameters(), foreach=False)
    step = step_of(module, optimizer)
    step(batches(module)[0])
    optimizer.state[next(module.parameters())]["mu_product"].mul_(0.5)
    with pytest.raises(MismatchError, match="mu_product differs between parameters of a group"):
        step(batches(module)[1])
