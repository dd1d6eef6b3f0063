"""Two optimizers of other parameters in one plan: weights and states are those of their own steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import unplanned
from memplan.graphs.errors import InputError
from memplan.updates.choice import OptimizerChoice
from memplan.updates.several import members_of
from optimizer_loops import batches, check_equal, loss_of, network, step_of
from torch import nn

Optimizers = list[torch.optim.Optimizer]


def pair(module: nn.Module) -> Optimizers:
    matrices = [weight for weight in module.parameters() if weight.dim() == 2]
    rest = [weight for weight in module.parameters() if weight.dim() != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(rest, lr=1e-2, foreach=False)]


def states(module: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    found: dict[str, Any] = dict(module.state_dict())
    for name, weight in module.named_parameters():
        for each in optimizers:
            found |= {f"{name}.{state}": x for state, x in each.state.get(weight, {}).items()}
    return {name: x for name, x in found.items() if not name.endswith("gradient_sum")}


def trained(module: nn.Module, optimizers: Optimizers, norm: float | None = None, every: int = 1) -> None:
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    for number, batch in enumerate(batches(module), 1):
        (loss_of(module(batch)) / every).backward()
        if number % every == 0:
            if norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            for each, schedule in zip(optimizers, schedules, strict=True):
                each.step()
                each.zero_grad()
                schedule.step()


def planned(module: nn.Module, optimizers: Optimizers, **options: Any) -> None:
    step = step_of(module, optimizers, **options)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    for batch in batches(module):
        step(batch)
        if step.optimizer_stepped:
            for schedule in schedules:
                schedule.step()


@pytest.mark.parametrize(("norm", "every"), [(None, 1), (0.01, 1), (0.01, 2), (None, 2)])
def test_muon_with_adamw(norm: float | None, every: int) -> None:
    own, other = network(), network()
    eager, optimizers = pair(own), pair(other)
    trained(own, eager, norm, every)
    planned(other, optimizers, max_grad_norm=norm, gradient_accumulation_steps=every)
    check_equal(states(own, eager), states(other, optimizers))


@pytest.mark.parametrize("options", [{"verify": True}, {"verify": None}, {"rollback_on_error": True}])
def test_compared_with_eager(options: dict[str, Any]) -> None:
    own, other = network(), network()
    eager, optimizers = pair(own), pair(other)
    trained(own, eager)
    planned(other, optimizers, **options)
    check_equal(states(own, eager), states(other, optimizers))


def test_states_are_loaded_both_ways() -> None:
    own = network()
    eager = pair(own)
    trained(own, eager)
    other = copy.deepcopy(own)
    optimizers = pair(other)
    for one, saved in zip(optimizers, eager, strict=True):
        one.load_state_dict(copy.deepcopy(saved.state_dict()))
    trained(own, eager)
    planned(other, optimizers)
    check_equal(states(own, eager), states(other, optimizers))


def test_a_checkpoint_goes_on(tmp_path: Path) -> None:
    own, other = network(), network()
    optimizers = [pair(module) for module in (own, other)]
    step, loading = (step_of(*each) for each in zip((own, other), optimizers, strict=True))
    first, second, *_others = batches(own)
    step(first)
    step.save(tmp_path / "saved")
    loading.load(tmp_path / "saved")
    for each in (step, loading):
        each(second)
    check_equal(states(own, optimizers[0]), states(other, optimizers[1]))


def test_the_command_line_adds_adamw_to_muon() -> None:
    optimizer = OptimizerChoice("muon", lr=1e-3).optimizer(network().parameters())
    assert [type(each).__name__ for each in members_of(optimizer)] == ["Muon", "AdamW"]
    assert [len(each.param_groups[0]["params"]) for each in members_of(optimizer)] == [3, 3]


def test_what_is_refused() -> None:
    module = network()
    muon, adamw = pair(module)
    both = torch.optim.AdamW(module.parameters())
    with pytest.raises(InputError, match="Muon and AdamW have a parameter in common"):
        step_of(module, [muon, both])
    rest = unplanned.RAdam(adamw.param_groups[0]["params"])
    with pytest.raises(InputError, match=r"of Muon, RAdam: not all of them can be planned"):
        step_of(module, [muon, rest])
    with pytest.raises(InputError, match=r"of Muon, AdamW and scaler are not planned together"):
        step_of(module, [muon, adamw], scaler=torch.amp.GradScaler("cpu"))
