"""Plans whose solver was stopped at its first schedule, improved while they train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import memplan
import pytest
import torch
from memplan.planner.simulator.simulate import simulate
from memplan.solvers import background
from memplan.solvers.problem import Problem
from memplan.training.plans import adapt, budgeted
from memplan.training.plans.training_log import TrainingLog
from memplan.training.progress import ProgressEvent
from torch import Tensor, nn

INPUTS = torch.randn(64, 32)


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)) for _ in range(6)]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)


def optimized(module: nn.Module, reported: list[ProgressEvent], **options: Any) -> Any:
    chosen = {"loss_fn": loss_of, "optimizer": sgd(module), "budget": "80%", "progress": reported.append}
    return memplan.optimize(module, INPUTS, **{**chosen, **options})


@pytest.fixture
def slow_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first schedule is one that recomputes far too much, and the worker has normal priority."""
    solve: Callable[..., Any] = vars(budgeted)["solve"]

    def stopped(name: str, problem: Problem, *given: Any, **more: Any) -> Any:
        found = solve("chen-sqrt", problem, *given, **{**more, "race": None})
        more["race"].proved(found.figures.time / 2, "a bound")
        more["race"].found(found.figures.time, name)
        return found

    monkeypatch.setattr(budgeted, "solve", stopped)
    monkeypatch.setattr(background, "LOWEST", 0)


def trained(module: nn.Module, turns: int) -> nn.Module:
    """The module as eager PyTorch trains it."""
    optimizer = sgd(module)
    torch.manual_seed(1)
    for _turn in range(turns):
        optimizer.zero_grad()
        loss_of(module(INPUTS)).backward()
        optimizer.step()
    return module


@pytest.mark.scripts
@pytest.mark.usefixtures("slow_first")
def test_a_stopped_plan_is_improved_between_iterations(tmp_path: Path) -> None:
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, reported, cache=tmp_path, verify=False)
    line = "the first schedule found is used, at most 50.0% slower than the fastest there can be: it is"
    assert any(line in each.text for each in reported if each.phase == "solve")
    assert line in str(step.report())
    first, turns = step.plan, 0
    torch.manual_seed(1)
    while not any(each.text.startswith("improved: ") for each in reported):
        step(INPUTS)
        turns += 1
    step(INPUTS)
    better = step.plan
    assert better.figures.time < first.figures.time
    assert simulate(better.graph, better.schedule, budget=first.budget).figures == better.figures
    for name, weight in trained(model(), turns + 1).state_dict().items():
        assert torch.equal(module.state_dict()[name], weight), name
    again = optimized(model(), reported, cache=tmp_path, verify=False)
    assert again.plan.figures == better.figures
    assert not step._executor.book.plan(step.plans[0]).improvable


@pytest.mark.usefixtures("slow_first")
def test_a_later_start_goes_on_from_a_plan_that_was_not_improved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def never(solver: str, *_given: Any, **_named: Any) -> Any:
        begun.append(solver)
        return SimpleNamespace(ended=Event())

    monkeypatch.setattr(adapt, "Background", never)
    for start in (1, 2):
        step = optimized(model(), [], cache=tmp_path, verify=False)
        phases = {"trace", "measure", "solve"} if start == 1 else {"trace"}
        assert step.report().plans[0].setup.keys() == phases
        for _turn in range(adapt.SETTLED):
            assert len(begun) == start - 1
            step(INPUTS)
        assert begun == ["auto"] * start


@pytest.mark.usefixtures("slow_first")
def test_the_background_has_the_techniques_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Problem] = []

    def never(_solver: str, problem: Problem, *_given: Any, **_named: Any) -> Any:
        begun.append(problem)
        return SimpleNamespace(ended=Event())

    monkeypatch.setattr(adapt, "Background", never)
    step = optimized(model(), [], cache=False, verify=False, allow="recompute")
    for _turn in range(adapt.SETTLED + 1):
        step(INPUTS)
    assert [problem.allow for problem in begun] == [("recompute",)]


@pytest.mark.scripts
@pytest.mark.parametrize("options", [{"time_limit": 5}, {"gap": 0.02}, {"solver": "rotor"}], ids=str)
def test_what_the_user_has_limited_is_solved_to_its_end(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []

    def seen(name: str, problem: Problem, *given: Any, race: Any, **more: Any) -> Any:
        patience.append(race.patience)
        return solve(name, problem, *given, race=race, **more)

    solve = vars(budgeted)["solve"]
    monkeypatch.setattr(budgeted, "solve", seen)
    monkeypatch.setattr(TrainingLog, "setup_seconds", 7.0)
    for chosen in (options, {"replan_on_drift": False}, {}):
        optimized(model(), [], cache=False, verify=False, **chosen)
    assert patience == [float("inf"), 53.0, 7.0]
