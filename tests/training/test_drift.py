"""A link that is half as fast as planned: training changes its transfers, then its plan, and keeps its bits.

The device is the CPU with a clock of its own: each operation sleeps, as long as it is said to take, and each
copy as long as the link needs for its bytes.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.planner.simulator.simulate import simulate
from memplan.runtime.device.cpu import Cpu
from memplan.runtime.storage import places
from memplan.solvers import background
from memplan.training import adapt, report
from memplan.training import plan as planning
from memplan.training.adapt import TURNS
from memplan.training.progress import Told
from torch import Tensor, nn

WIDTH, SECONDS = 96, 0.002
RATE = WIDTH * WIDTH * 4 / SECONDS
"""A weight takes as long to copy as an operation takes to run."""

INPUTS = torch.randn(64, WIDTH)
ENOUGH = 7


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, foreach=False)


class Emulated:
    """rate: bytes/s of the links as they are. slower: by operation name, a factor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rate, self.slower = RATE, dict[str, float]()
        measured = planning.measure_program
        monkeypatch.setattr(
            planning,
            "measure_program",
            lambda *given, **more: [one._replace(seconds=SECONDS) for one in measured(*given, **more)],
        )
        monkeypatch.setattr(Cpu, "launched", self.launched)
        monkeypatch.setattr(Cpu, "copy", self.copy)

    def launched(self, _program: Any, operation: Any, _workspace: int) -> Any:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            time.sleep(SECONDS * self.slower.get(operation.name, 1.0))
            return target(*arguments, **keywords)

        return run

    def copy(self, source: Tensor, target: Tensor) -> None:
        time.sleep(source.nbytes / self.rate)
        target.copy_(source)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(report, "ENOUGH", ENOUGH)
    monkeypatch.setattr(background, "LOWEST", 0)  # the tests' machine may have others at work
    return Emulated(monkeypatch)


def optimized(module: nn.Module, told: list[Told], **options: Any) -> Any:
    chosen = {"machine": Machine(links=Links(RATE, RATE)), "solver": "l2l", "budget": "60%", **options}
    given = {"loss_fn": loss_of, "optimizer": sgd(module), "progress": told.append, "compare": False}
    return memplan.optimize(module, INPUTS, keep=chosen.pop("keep", False), **given, **chosen)


def taken(step: Any, turns: int) -> float:
    """The median of so many iterations, in seconds."""
    seconds: list[float] = []
    for _turn in range(turns):
        begun = time.perf_counter()
        step(INPUTS)
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def lines(told: list[Told]) -> list[str]:
    return [each.text for each in told if each.phase == "train" and each.text]


def assert_plain(step: Any, module: nn.Module, turns: int) -> None:
    """Bitwise as plain PyTorch after so many turns."""
    plain = model()
    optimizer = sgd(plain)
    for _turn in range(turns):
        optimizer.zero_grad()
        loss_of(plain(INPUTS)).backward()
        optimizer.step()
    step.recall()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_transfers_move_where_a_link_is_half_as_fast(
    emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has room for one plan alone: the next has what the first one leaves."""
    module, told = model(), list[Told]()
    step = optimized(module, told, keep=tmp_path)
    planned = step.plan
    monkeypatch.setattr(places, "available_bytes", lambda: planned.figures.host_peak // 2)
    emulated.rate = RATE / 2
    before = taken(step, ENOUGH + 2)
    assert before > 1.1 * planned.figures.time
    step._planner.solver = "store-all"  # which finds nothing within the budget
    while not any("transfers moved" in line for line in lines(told)):
        step(INPUTS)
    assert step.plan.schedule is not planned.schedule
    assert step.plan.figures.peak <= planned.budget
    links = step.plan.graph.machine.links
    assert links.h2d == pytest.approx(RATE / 2, rel=0.2)
    assert links.d2h == pytest.approx(RATE / 2, rel=0.2)
    after = taken(step, 10)
    assert after < 0.9 * before
    assert after == pytest.approx(step.plan.figures.time, rel=0.2)
    said = lines(told)
    assert "against the plan's" in said[0]
    assert "h2d" in said[1]
    assert all(line in str(step.report()) for line in said)
    assert_plain(step, module, step.report().plans[0].iterations)
    monkeypatch.undo()
    again = optimized(model(), [], keep=tmp_path)  # the next start has the schedule and the rates
    assert again.plan.figures == step.plan.figures
    assert again.plan.graph.machine.links == links


def test_a_plan_is_solved_again_in_the_background(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the transfers can't be moved, by a fault that is told."""
    monkeypatch.setattr(adapt, "placed", lambda *_given: {}["fault"])
    module, told = model(), list[Told]()
    step = optimized(module, told, time_limit=1)
    emulated.rate = RATE / 2
    before = taken(step, ENOUGH + 2)
    step._planner.solver = "greedy-star"
    while not (done := [line for line in lines(told) if line.startswith("solved again")]):
        step(INPUTS)
    assert "expected" in done[0]
    assert "transfers stay, KeyError: 'fault'" in lines(told)[1]
    plan = step.plan
    assert simulate(plan.graph, plan.schedule, budget=plan.budget).figures == plan.figures
    assert plan.figures.time < 0.9 * before
    assert taken(step, 10) < 0.9 * before
    assert_plain(step, module, step.report().plans[0].iterations)


def test_without_adapting_it_is_told_once_and_nothing_changes(emulated: Emulated) -> None:
    module, told = model(), list[Told]()
    step = optimized(module, told, adapt=False)
    schedule = step.plan.schedule
    emulated.rate = RATE / 2
    taken(step, ENOUGH + 2 + TURNS)
    assert len(lines(told)) == 1
    assert step.plan.schedule is schedule
