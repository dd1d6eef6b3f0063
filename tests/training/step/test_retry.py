"""Iterations that run out of memory in spite of their plan: repeated by a plan for less, bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import unplanned
from five_layers import INPUTS, adamw, loss_of, model, optimized
from hypothesis import given
from hypothesis import strategies as st
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.device import PinError
from memplan.devices.storage import host_buffers, journal
from memplan.devices.storage.shortage import ShortageError
from memplan.graphs.machine import Links, Machine
from memplan.runtime.run import cycle
from memplan.solvers.registry.run import solve_or_unpin
from memplan.steps import execute
from memplan.steps.execute import PlannedStep
from memplan.training.plans import budgeted
from memplan.training.step import retry
from simulated_device.device import SimulatedDevice
from torch import nn


class Full:
    """The n-th call of a planned iteration finds no memory. calls: so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at = 0, set[int]()
        monkeypatch.setattr(Cpu, "launched", self.launched)

    def launched(self, _program: Any, operation: Any, _workspace: int) -> Callable[..., Any]:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            if self.calls in self.at:
                raise torch.OutOfMemoryError("out of memory, on purpose")
            return target(*arguments, **keywords)

        return run


@pytest.mark.sampled(1)
@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
@pytest.mark.parametrize("undo", [False, True], ids=["no undo", "undo"])
def test_an_iteration_without_memory_is_repeated_by_a_plan_for_less(
    moved: bool, undo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it failed, twice running too, with the results of plain PyTorch."""
    module, baseline = model(), model()
    optimizer, eager = adamw(module), adamw(baseline)
    full = Full(monkeypatch)
    options: dict[str, Any] = {"rollback_on_error": undo}
    if moved:
        options |= {
            "machine": Machine(links=Links(1e9, 1e9)),
            "solver": "l2l",
            "budget": "100%",
        }
    step = optimized(module, optimizer, **options)
    budget = step.plans[0].budget
    torch.manual_seed(1)
    step(INPUTS)
    each = full.calls
    full.at = {full.calls + (each - 2 if undo else 2)}
    with pytest.warns(UserWarning, match=r"repeated by a plan for 95% of its bytes") as warned:
        step(INPUTS)
    assert warned[0].filename == __file__
    assert step.plans[0].budget == int(0.95 * budget)
    full.at = {full.calls + 1, full.calls + 3}
    with pytest.warns(UserWarning, match=r"90% of its bytes"):
        step(INPUTS)
    assert step.plans[0].budget == int(0.9 * int(0.95 * budget))
    assert step.report().plans[0].iterations == 1
    step.restore_to_device()
    assert_same(module, trained(baseline, eager, 3))


def test_a_plan_for_less_is_kept_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    solved: list[int] = []
    monkeypatch.setattr(
        budgeted, "solve", lambda *given, **more: solved.append(1) or solve_or_unpin(*given, **more)
    )
    for _ in range(2):
        module = model()
        full = Full(monkeypatch)
        step = optimized(module, adamw(module), cache=tmp_path)
        full.at = {full.calls + 2}
        with pytest.warns(UserWarning, match="repeated by a plan for 95% of its bytes"):
            step(INPUTS)
        assert len(solved) == 2


@pytest.mark.parametrize("batch", [0, 1], ids=["a batch that adds", "the last batch"])
def test_a_batch_of_an_update_without_memory_is_repeated(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are states of both plans: the next one goes on with them."""
    module, baseline = model(), model()
    optimizer, eager = adamw(module), adamw(baseline)
    full = Full(monkeypatch)
    step = optimized(module, optimizer, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    for turn in range(4):
        if turn == 2 + batch:
            full.at = {full.calls + 2}
            with pytest.warns(UserWarning, match="repeated by a plan for 95% of its bytes"):
                step(INPUTS)
        else:
            step(INPUTS)
        assert step.optimizer_stepped == bool(turn % 2)
    assert_same(module, trained(baseline, eager, 4, gradient_accumulation_steps=2))


def test_what_can_not_be_repeated_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed between updates; another error; no plan for less. The last names it, and all is as before."""
    module = model()
    full = Full(monkeypatch)
    step = optimized(module, adamw(module), budget="100%", solver="store-all")
    step(INPUTS)
    before = copy.deepcopy(module.state_dict())
    full.at = {full.calls + 3}
    with pytest.raises(torch.OutOfMemoryError) as failed:
        step(INPUTS)
    assert any("there is no plan either" in note for note in failed.value.__notes__)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    step(INPUTS)
    full.at = {full.calls + len(step.plans[0].program.operations) - 1}
    with pytest.raises(torch.OutOfMemoryError) as failed:
        step(INPUTS)
    assert any("load the weights" in note for note in failed.value.__notes__)


def adafactor(module: nn.Module) -> torch.optim.Optimizer:
    return unplanned.Adafactor(module.parameters(), 0.01)


def trained(
    module: nn.Module, optimizer: torch.optim.Optimizer, turns: int, gradient_accumulation_steps: int = 1
) -> nn.Module:
    """By plain PyTorch."""
    torch.manual_seed(1)
    for turn in range(turns):
        (loss_of(module(INPUTS)) / gradient_accumulation_steps).backward()
        if (turn + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return module


def assert_same(own: nn.Module, theirs: nn.Module) -> None:
    for mine, other in zip(own.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_what_no_plan_needs_less_of_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing keeps as much whatever the plan, which has nothing on the host."""
    module, baseline = model(), model()
    optimizer, eager = adamw(module), adamw(baseline)
    step = optimized(module, optimizer, rollback_on_error=True)
    torch.manual_seed(1)

    def unpinned(*_given: Any) -> Any:
        raise PinError("refused, on purpose")

    def refused(*_given: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(journal, "Arena", unpinned)
        patch.setattr(host_buffers, "np", SimpleNamespace(empty=refused, uint8=np.uint8))
        with pytest.raises(ShortageError, match=r"the host has no memory for another .* bytes"):
            step(INPUTS)
    step(INPUTS)
    assert_same(module, trained(baseline, eager, 1))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_behind_the_plan_the_optimizer_steps_once_for_an_iteration_that_is_repeated(
    accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = model()
    full = Full(monkeypatch)
    with pytest.warns(UserWarning, match="is not in the plan"):
        step = optimized(module, adafactor(module), gradient_accumulation_steps=accumulate, budget="130%")
    budget = step.plans[0].budget
    torch.manual_seed(1)
    for turn in range(4):
        if turn != 1:
            step(INPUTS)
            continue
        full.at = {full.calls + 10}
        with pytest.warns(UserWarning, match=r"repeated by a plan for 95% of its bytes"):
            step(INPUTS)
    assert step.plans[0].budget == int(0.95 * budget)
    baseline = model()
    assert_same(module, trained(baseline, adafactor(baseline), 4, accumulate))


@pytest.mark.scripts
@pytest.mark.parametrize("make", [adamw, adafactor])
def test_an_evaluation_is_repeated_too(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = model()
    full = Full(monkeypatch)
    with pytest.warns(UserWarning, match="in the plan") if make is adafactor else nullcontext():
        step = optimized(module, make(module), return_outputs=True)
    torch.manual_seed(1)
    step(INPUTS)
    expected, output = step.evaluate(INPUTS)
    before, training = torch.get_rng_state(), step.plans[0].budget
    held = step._executor.forward["evaluate"].plans.steps[0].budget
    full.at = {full.calls + 3, full.calls + 5}
    with pytest.warns(UserWarning, match=r"repeated by a plan for 9[05]% of its bytes") as warned:
        loss, recomputed = step.evaluate(INPUTS)
    assert len(warned) == 2
    assert warned[0].filename == __file__
    assert torch.equal(loss, expected)
    assert torch.equal(recomputed, output)
    assert torch.equal(torch.get_rng_state(), before)
    assert [plan.budget for plan in step._executor.forward["evaluate"].plans.steps] == [int(0.9 * held)]
    assert module.training
    step(INPUTS[:7])
    assert step.plans[0].budget == training
    step.restore_to_device()
    assert step.predict(INPUTS).shape == output.shape


@pytest.mark.scripts
@pytest.mark.parametrize("moved", [False, True], ids=["device alone", "weights moved"])
def test_on_a_device_whose_memory_is_full_for_a_moment(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocations, copies and launches that fail, while streams still run."""
    device = SimulatedDevice(seed=3)
    for room in (execute, cycle):
        monkeypatch.setattr(room, "device_of", lambda _name: device)
    module = model()
    options: dict[str, Any] = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "budget": "100%"}
    step = optimized(
        module, adamw(module), rollback_on_error=True, **(options if moved else {"budget": "150%"})
    )
    torch.manual_seed(1)
    step(INPUTS)
    for turn, kind in enumerate(["allocation", "launch", "copy", "allocation"]):
        device.faults.plan(kind, 7 + turn, torch.OutOfMemoryError("out of memory, on purpose"))
        with pytest.warns(UserWarning, match="repeated by a plan for 95% of its bytes"):
            step(INPUTS)
    device.synchronize()
    step.restore_to_device()
    device.synchronize()
    baseline = model()
    assert_same(module, trained(baseline, adamw(baseline), 5))


@given(
    budget=st.integers(100, 10**6),
    tried=st.floats(0.1, 1),
    room=st.none() | st.integers(0, 10**6),
    share=st.sampled_from(retry.SHARES),
)
def test_a_plan_that_has_failed_is_tried_with_less(
    budget: int, tried: float, room: int | None, share: float
) -> None:
    """Whatever a device says of its room, no size is tried twice, and none that is larger."""
    step: Any = SimpleNamespace(budget=int(tried * budget), device_room=room, graph=object())
    asked = list[int]()

    def smaller(step: Any, less: int, _capacity: Any = None) -> Any:
        asked.append(less)
        return step

    retry._with_less_on_device(budget, step, share, smaller, Mock())
    assert asked[0] < step.budget
    if room is not None:
        assert asked[0] <= max(room, int(0.95 * step.budget))


def test_a_batch_that_the_device_has_not_is_no_room() -> None:
    """A step made the device's copy of a batch, and it went with the iteration."""
    device = SimulatedDevice(seed=0)
    step: Any = SimpleNamespace(device=device, _watch=SimpleNamespace(own_bytes=10**6))
    of: Any = PlannedStep.device_room.fget
    assert of(step) == device.free_bytes()
    arena = device.room(1024)
    assert of(step) == device.free_bytes() + device.allocated_bytes() >= arena.nbytes
