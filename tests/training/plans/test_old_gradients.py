"""Gradients of earlier iterations on the host while a planned one runs: bits, bytes, and when it pays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.devices.storage.offloaded import Offloaded, bring_back
from memplan.graphs.machine import Links, Machine
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError
from memplan.training.plans.old_gradients import OldGradients
from memplan.training.plans.plan import Planner
from memplan.training.plans.plan_cache import Plan
from not_none import not_none
from simulated_device.device import SimulatedDevice
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from whole_loops import LOOPS, Loops, adam, momentum, smallest

FAST = Machine(links=Links(1e12, 1e12))
ITERATIONS = 5
GIVEN: dict[str, Any] = {"machine": FAST, "solver": "joint", "time_limit": 0.3}


def loops_of(name: str, **options: Any) -> Loops:
    make, loop, given = LOOPS[name]
    return Loops(make, loop, **(GIVEN | given | options))


def is_away(loops: Loops) -> bool:
    return loops.step._executor.planner.outside.offloaded


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["zero_grad between", "accumulate", "closure", "scaler", "clip"])
def test_the_peak_of_the_whole_loop_is_within_the_budget(name: str) -> None:
    least = smallest(loops_of(name))
    loops = loops_of(name)
    assert loops.plan(least) == least
    assert is_away(loops)
    assert 0.8 * least < loops.peak() <= least


@pytest.mark.scripts
def test_the_smallest_budget_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD: its step takes little, so that an iteration needs most."""
    options = GIVEN | {"allow": ("recompute", "offload")}
    least = smallest(Loops(momentum, Loops.zero_grad_between, **options))
    monkeypatch.setattr("memplan.training.plans.budgeted.machine_for", lambda *_, **_named: None)
    resident = smallest(Loops(momentum, Loops.zero_grad_between, **options))
    gradients = sum(p.nbytes for p in Loops(momentum, Loops.zero_grad_between).model.parameters())
    assert least < resident
    assert resident - least <= gradients


class Both:
    """Two equal models in the same loop: one by a plan with old gradients on the host, one eager."""

    def __init__(self, budget: int | str, **options: Any) -> None:
        self.loops = loops_of("zero_grad between", **options)
        self.eager = copy.deepcopy(self.loops.model)
        self.optimizer = adam(self.eager.parameters())
        self.loops.plan(budget)
        assert is_away(self.loops)

    def losses(self) -> tuple[Tensor, Tensor]:
        x, y = torch.randn_like(self.loops.x), torch.randint_like(self.loops.y, 4)
        return self.loops.step(x, targets=y), functional.cross_entropy(self.eager(x), y)

    def old_are_away(self) -> bool:
        return all(isinstance(p.grad, Offloaded) for p in self.loops.model.parameters())

    def check(self) -> None:
        for mine, theirs in zip(self.loops.model.parameters(), self.eager.parameters(), strict=True):
            assert torch.equal(mine, theirs)
            assert (mine.grad is None) == (theirs.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, not_none(theirs.grad))


@pytest.fixture(scope="module")
def least() -> int:
    return smallest(loops_of("zero_grad between"))


@pytest.mark.scripts
@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_between(least: int, to_none: bool) -> None:
    both = Both(least)
    for number in range(ITERATIONS):
        pair = both.losses()
        assert torch.equal(*pair)
        assert both.old_are_away() == (number > 0)
        for optimizer, loss in zip((both.loops.optimizer, both.optimizer), pair, strict=True):
            optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            optimizer.step()
        both.check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fused", [False, True])
def test_accumulation_with_clipping(least: int, fused: bool) -> None:
    both = Both(least)
    both.loops.optimizer, both.optimizer = (
        AdamW(model.parameters(), lr=0.01, fused=fused) for model in (both.loops.model, both.eager)
    )
    for number in range(8):
        for loss in both.losses():
            (loss / 4).backward()
        both.check()
        if number % 4 == 3:
            for model, optimizer in ((both.loops.model, both.loops.optimizer), (both.eager, both.optimizer)):
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                optimizer.zero_grad()
        both.check()


def test_what_reads_a_gradient_has_it_back(least: int) -> None:
    both = Both(least)
    for loss in both.losses():
        loss.backward()
    first = next(both.loops.model.parameters())
    known = not_none(first.grad)
    values = known.clone()
    both.losses()
    assert isinstance(first.grad, Offloaded)
    assert first.grad is known
    assert torch.equal(copy.deepcopy(known), values)
    both.losses()
    assert isinstance(first.grad, Offloaded)
    assert torch.equal(known, values)
    assert type(known) is Tensor
    both.losses()
    both.loops.optimizer.step()  # with the gradients of before
    both.optimizer.step()
    both.check()


def test_another_shape_and_a_last_batch(least: int) -> None:
    both = Both(int(1.05 * least))
    for rows in (256, 200, 256, 3):
        x, y = torch.randn(rows, 32), torch.randint(4, (rows,))
        pair = both.loops.step(x, targets=y), functional.cross_entropy(both.eager(x), y)
        assert torch.equal(*pair)
        for optimizer, loss in zip((both.loops.optimizer, both.optimizer), pair, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        both.check()


@pytest.mark.scripts
def test_it_is_done_where_the_plan_with_its_copies_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On links of many speeds, by the simulated times of all plans that were made."""
    made: list[Plan] = []
    solved = Planner._solved

    def noted(self: Planner, *arguments: Any) -> Plan:
        made.append(solved(self, *arguments))
        return made[-1]

    monkeypatch.setattr(Planner, "_solved", noted)
    ways: set[tuple[int, bool]] = set()
    for rate in (1e4, 1e6, 1e8, 1e9, 1e10, 1e12):
        made.clear()
        machine = Machine(links=Links(rate, rate))
        loops = loops_of("zero_grad between", machine=machine)
        whole = loops.plan("60%")
        gradients = loops.step._executor.planner.outside.gradients
        taken: list[float] = []
        for plan in made:
            figures = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
            away = plan.budget == whole - loops.step._executor.planner.outside.states
            taken.append(figures.time + (gradients / rate if away else 0))
        used = loops.step._executor.planner.book.plan(loops.step.plans[0])
        assert used is made[taken.index(min(taken))]
        assert is_away(loops) == (used.budget == whole - loops.step._executor.planner.outside.states)
        ways.add((len(made), is_away(loops)))
    assert {(1, False), (2, True)} <= ways


@pytest.mark.scripts
def test_a_host_that_has_no_room_for_them_gets_none(least: int) -> None:
    with pytest.raises(InfeasibleError):
        loops_of("zero_grad between", machine=Machine(host_capacity=1000, links=Links(1e12, 1e12))).plan(
            least
        )


@pytest.mark.scripts
def test_without_offloading_they_stay(least: int) -> None:
    with pytest.raises(InfeasibleError):
        loops_of("zero_grad between", allow=("recompute",), solver="search").plan(least)


@pytest.mark.scripts
def test_the_plan_is_found_in_the_cache(least: int, tmp_path: Path) -> None:
    for _ in range(2):
        loops = loops_of("zero_grad between", cache=tmp_path)
        loops.plan(least)
        assert is_away(loops)
        assert loops.step.plan.budget + loops.step._executor.planner.outside.bytes == least
    notes = loops.step.report().plans[0].notes
    assert any("of .grad are in host memory while an iteration runs" in note for note in notes)
    assert len([each for each in tmp_path.iterdir() if each.name != "refused"]) == 1


@pytest.mark.scripts
def test_gradients_in_memory_that_others_have_too_stay_and_count() -> None:
    """The loop keeps all its gradients in one flat tensor."""
    whole = loops_of("zero_grad between").plan("100%")
    loops = loops_of("zero_grad between")
    least = smallest(loops_of("zero_grad between"))
    budget = (3 * least + whole) // 4
    loops.options["allow"] = ("offload",)
    loops.plan(budget)
    if not is_away(loops):  # else there is no plan that is too large
        loops.step._executor.planner.outside = loops.step._executor.planner.outside._replace(offloaded=True)
    parameters = [*loops.model.parameters()]
    flat = torch.zeros(sum(p.numel() for p in parameters))
    place = 0
    for each in parameters:
        each.grad = flat[place : place + each.numel()].view_as(each)
        place += each.numel()
    with pytest.warns(
        UserWarning, match="of .grad stay on the device and count from now on: they lie in memory that other"
    ):
        loops.loss().backward()
    assert not is_away(loops)
    assert torch.equal(not_none(parameters[0].grad).flatten(), flat[: parameters[0].numel()])


@pytest.mark.scripts
def test_a_host_without_memory_for_them_has_them_stay_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(smallest(loops_of("zero_grad between")))
    for loss in both.losses():
        loss.backward()
    before = [not_none(p.grad).clone() for p in both.loops.model.parameters()]

    def full(*_arguments: Any, **_named: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("memplan.training.plans.old_gradients.offload", full)
    with (
        pytest.warns(UserWarning, match="count from now on: the host has no memory for them; call zero_grad"),
        pytest.raises(InfeasibleError, match=r"of \.grad"),  # it is the smallest budget
    ):
        both.loops.loss()
    now = [not_none(p.grad) for p in both.loops.model.parameters()]
    assert all(map(torch.equal, now, before))


def test_an_optimizer_that_no_plan_has_adds_up_on_the_host(least: int) -> None:
    """memplan's own loop around an optimizer, over two batches."""
    torch.manual_seed(3)
    loops = loops_of("zero_grad between")
    eager = copy.deepcopy(loops.model)
    mine, theirs = (unplanned.Adagrad(model.parameters(), 0.01) for model in (loops.model, eager))
    with pytest.warns(UserWarning, match="Adagrad is not in the plan"):
        step = memplan.optimize(
            loops.model,
            loops.x,
            targets=loops.y,
            loss_fn=functional.cross_entropy,
            optimizer=mine,
            gradient_accumulation_steps=2,
            budget=least,
            cache=False,
            **GIVEN,
        )
    assert step._executor.planner.outside.offloaded
    for number in range(4):
        x, y = torch.randn_like(loops.x), torch.randint_like(loops.y, 4)
        loss = functional.cross_entropy(eager(x), y)
        assert torch.equal(step(x, targets=y), loss)
        (loss / 2).backward()
        if number % 2:
            theirs.step()
            theirs.zero_grad()
    for one, other in zip(loops.model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(one, other)


def test_on_a_device_that_copies_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are queued on the simulated device, whose streams run behind; memory is used anew at once."""
    torch.manual_seed(3)
    device = SimulatedDevice(5)
    monkeypatch.setattr("memplan.training.plans.old_gradients.device_of", lambda _: device)
    parameters = [nn.Parameter(torch.zeros(size, 7)) for size in (1, 300, 20)]
    for each in parameters:
        each.grad = torch.randn_like(each)
    known = [not_none(each.grad).clone() for each in parameters]
    old = OldGradients(parameters, FAST)
    for _ in range(4):
        old.leave()
        assert old.staying == 0
        assert all(isinstance(each.grad, Offloaded) for each in parameters)
        torch.full((300, 7), 9.0)
        for each, values in zip(parameters, known, strict=True):
            bring_back([not_none(each.grad)])
            device.synchronize()
            assert torch.equal(not_none(each.grad), values)
