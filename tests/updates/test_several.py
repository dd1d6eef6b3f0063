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
from optimizer_loops import STEPS, batches, check_equal, loss_of, network, step_of
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
    schedules = schedules_of(optimizers)
    for number, batch in enumerate(batches(module, STEPS * every), 1):
        (loss_of(module(batch)) / every).backward()
        if number % every == 0:
            if norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), norm)
            for each, schedule in zip(optimizers, schedules, strict=True):
                each.step()
                each.zero_grad()
                schedule.step()


def planned(module: nn.Module, optimizers: Optimizers, every: int = 1, **options: Any) -> None:
    step = step_of(module, optimizers, gradient_accumulation_steps=every, **options)
    go_on(step, schedules_of(optimizers), batches(module, STEPS * every))


def schedules_of(optimizers: Optimizers) -> list[Any]:
    return [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]


def go_on(step: Any, schedules: list[Any], given: list[torch.Tensor]) -> None:
    for batch in given:
        step(batch)
        if step.optimizer_stepped:
            for schedule in schedules:
                schedule.step()


@pytest.mark.parametrize(("norm", "every"), [(None, 1), (0.01, 1), (0.01, 2), (None, 2)])
def test_muon_with_adamw(norm: float | None, every: int) -> None:
    own, other = network(), network()
    eager, optimizers = pair(own), pair(other)
    trained(own, eager, norm, every)
    planned(other, optimizers, every, max_grad_norm=norm)
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
    """From the midst of an update, clipped."""
    own, *modules = [network() for _ in range(3)]
    eager, *optimizers = map(pair, (own, *modules))
    trained(own, eager, norm=0.01, every=2)
    first, last = (
        step_of(*each, max_grad_norm=0.01, gradient_accumulation_steps=2)
        for each in zip(modules, optimizers, strict=True)
    )
    given, half = batches(own, 2 * STEPS), STEPS + 1
    go_on(first, schedules_of(optimizers[0]), given[:half])
    first.save(tmp_path / "saved")
    schedules = schedules_of(optimizers[1])  # these set the first rates, and `load` those of the update
    last.load(tmp_path / "saved")
    go_on(last, schedules, given[half:])
    check_equal(states(own, eager), states(modules[1], optimizers[1]))


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
