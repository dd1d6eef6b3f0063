"""The budget is what the whole loop uses: weights, gradients, states, the optimizer's step and the plan.

The peak of five iterations is measured by the allocator's events, with all that stays from before them.
"""

from __future__ import annotations

import gc
import io
import sys
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.cli.printing.output import Output
from memplan.cli.replay import open_schedule
from memplan.cli.report import _origin
from memplan.devices.device.cpu import Cpu
from memplan.graphs.errors import InputError
from memplan.graphs.units import format_bytes
from memplan.model.iteration import Iteration
from memplan.solvers.problem import InfeasibleError
from memplan.training import progress
from memplan.training.options import Options
from memplan.training.plans.loop_memory import LoopMemory, LoopWatch, optimizers_of
from memplan.training.progress import ProgressEvent
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from unplanned import RMSprop
from whole_loops import LOOPS, Loops, adam, momentum, smallest


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOOPS)
def test_the_peak_of_the_whole_loop_is_within_the_budget(name: str) -> None:
    make, loop, options = LOOPS[name]
    loops = Loops(make, loop, **options)
    whole = loops.plan("100%")
    least = smallest(Loops(make, loop, **options))
    assert least < 0.8 * whole
    for budget in (whole, (whole + least) // 2, least):
        loops = Loops(make, loop, **options)
        assert loops.plan(budget) == budget
        said = loops.step.plan.device
        assert 0.8 * budget < loops.peak() <= said.total <= budget, budget
        assert loops.step.plan.limit.total == budget, "as a share and in bytes"


PLACES = {
    "in the plan": (Loops.planned, {"inside": adam}),
    "in the plan, over two batches": (Loops.planned, {"inside": adam, "gradient_accumulation_steps": 2}),
    "after the plan": (Loops.planned, {"inside": RMSprop}),
    "after the plan, over two batches": (
        Loops.planned,
        {"inside": RMSprop, "gradient_accumulation_steps": 2},
    ),
    "the loop's": (Loops.zero_grad_between, {}),
    "the loop's, over two batches": (Loops.accumulate, {}),
    "states in bytes": (Loops.zero_grad_last, {"states": "40000B"}),
    "none": (Loops.zero_grad_last, {"make": lambda _parameters: None}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PLACES)
def test_all_places_state_the_same_memory(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The budget as it was given, and a peak that the loop does not exceed; both with the same parts."""
    loop, options = PLACES[name]
    options = {**options}
    make, line, total = options.pop("make", adam), io.StringIO(), 600_000
    caplog.set_level("INFO", logger="memplan")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", line)
    monkeypatch.setattr(Cpu, "constant_bytes", lambda _self: 512)
    loops = Loops(make, loop, **options)
    loops.plan(total)
    plan, report = loops.step.plan, loops.step.report().plans[0]
    limit, device, outside = plan.limit, plan.device, loops.step._executor.planner.outside
    assert limit.total == report.budget == total
    assert device.total == report.predicted_peak <= total
    assert (limit.plan, device.plan) == (plan.budget, plan.figures.peak)
    assert (limit.states, limit.gradients) == (device.states, device.gradients)
    assert limit.states + limit.gradients == outside.bytes
    assert (limit.states > 0) == ("in the plan" not in name)
    assert limit.other == 512 <= device.other
    for memory in (limit, device):
        assert memory.total == memory.plan + memory.states + memory.gradients + memory.other
        assert f" {memory}\n" in f"{loops.step.report()}\n"
    assert f"{format_bytes(device.total)} of {format_bytes(total)} ({device.parts})\n" in line.getvalue()
    assert f"budget {limit}\n" in caplog.text
    assert f"Plan within {format_bytes(total)}: " in repr(plan)
    assert f" {format_bytes(device.total)} peak, " in repr(plan)
    assert f" {format_bytes(device.total)} peak, " in repr(loops.step)
    assert device.parts in plan._repr_html_().replace("&#x27;", "'")
    if loops.optimizer is not None:
        counts = 4 * len(list(loops.model.parameters()))  # the optimizer's, which are no tensors of a plan
        assert loops.peak() <= device.total - 512 + counts
    callback = ProgressEvent("train", planned=(device.total, 0))
    assert f"device {format_bytes(device.total)} planned" in str(callback)
    plan.save(tmp_path)
    schedule = tmp_path / "schedule.json"
    held = open_schedule(schedule, None, Output())
    assert held.budget == limit.plan
    assert held.loop == device.within(limit)
    assert held.loop in shown("show", schedule)
    assert held.loop in shown("check", schedule)
    assert f"in its training loop: peak {held.loop}" in _origin(held)
    assert "in the loop" not in shown("check", schedule, "--budget", "1GB")  # not the loop's budget


def shown(command: str, schedule: Path, *words: str) -> str:
    result = CliRunner().invoke(main, [command, str(schedule), *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_copies_of_weights_are_given_in_bytes() -> None:
    loops = Loops(adam, Loops.averaged)
    weights = sum(p.nbytes for p in loops.model.parameters())
    loops.held = [p.detach().clone() for p in loops.model.parameters()]
    whole = loops.plan("90%", states=2 * weights + weights + 1000)
    assert 0.8 * whole < loops.peak() <= whole


@pytest.mark.scripts
@pytest.mark.filterwarnings("error")
def test_an_optimizer_made_later_is_assumed_and_then_counted() -> None:
    """SGD takes less than the AdamW that was assumed: plans to come get the rest."""
    loops = Loops(momentum, Loops.zero_grad_last)
    with pytest.warns(UserWarning, match="no optimizer of the module's parameters is there yet"):
        step = memplan.optimize(
            loops.model,
            loops.x,
            targets=loops.y,
            budget="80%",
            solver="rotor",
            cache=False,
            verify=False,
            loss_fn=functional.cross_entropy,
        )
    assert "AdamW's states and" in step.report().plans[0].notes[0]
    planner = step._executor.planner
    whole = step.plan.budget + planner.outside.bytes
    loops.step, loops.optimizer = step, momentum(loops.model.parameters())
    assert loops.peak() <= whole
    assert planner.outside.name == "SGD"
    assert planner.bytes is not None
    assert planner.bytes + planner.outside.bytes == whole
    assert planner.bytes > step.plan.budget


@pytest.mark.scripts
def test_an_optimizer_that_takes_more_than_was_assumed_gets_it_at_once() -> None:
    loops = Loops(lambda p: AdamW(p, amsgrad=True), Loops.zero_grad_between)
    with pytest.warns(UserWarning, match="no optimizer of the module's"):
        step = memplan.optimize(
            loops.model,
            loops.x,
            targets=loops.y,
            budget="95%",
            solver="rotor",
            cache=False,
            verify=False,
            loss_fn=functional.cross_entropy,
        )
    whole = step.plan.budget + step._executor.planner.outside.bytes
    loops.step, loops.optimizer = step, loops.make(loops.model.parameters())
    loops.zero_grad_between(0)
    with pytest.warns(UserWarning, match="AdamW takes more than was assumed"):
        loops.zero_grad_between(1)
    assert step.plan.budget + step._executor.planner.outside.bytes == whole
    states = sum(t.nbytes for row in loops.optimizer.state.values() for t in row.values())
    loops.optimizer.zero_grad()
    assert loops.peak() + states <= whole


def test_gradients_that_are_kept_in_spite_of_freed_count_at_once() -> None:
    """The plan for fewer bytes holds before the iteration begins; `.grad` is as it was."""
    loops = Loops(adam, Loops.zero_grad_first, gradients="freed")
    whole = loops.plan("95%")
    loops.zero_grad_last(0)
    loops.loss().backward()
    before = [p.grad.clone() for p in loops.model.parameters() if p.grad is not None]
    loops.loop = Loops.accumulate
    with pytest.warns(UserWarning, match="gradients='freed', but .grad has some when the step is called"):
        loops.loss()
    now = [p.grad for p in loops.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True) if b is not None)
    assert loops.step.plan.budget + loops.step._executor.planner.outside.bytes == whole
    loops.optimizer.zero_grad()
    states = sum(t.nbytes for row in loops.optimizer.state.values() for t in row.values())
    assert loops.peak() + states <= whole


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("states", "times"),
    [(0, 0), ("2kB", None), (SGD, 0), (momentum, 1), (AdamW, 2), (Adagrad, 1)],
)
def test_states_say_otherwise(states: Any, times: int | None) -> None:
    """Numbers of steps, and of a loop, are little beside weights."""
    loops = Loops(adam, Loops.zero_grad_first)
    loops.plan("100%", states=states)
    counted, weights = (
        loops.step._executor.planner.outside.states,
        sum(p.nbytes for p in loops.model.parameters()),
    )
    if times is None:
        assert counted == 2000
    else:
        assert times * weights <= counted <= times * weights + 128
    assert not loops.optimizer.state


def test_an_optimizer_as_states_need_not_be_looked_for() -> None:
    loops = Loops(adam, Loops.zero_grad_first)
    loops.plan("100%", states=momentum(loops.model.parameters()))
    assert loops.step._executor.planner.outside.name == "SGD"


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ("much", "'much'"),
        (True, "give bytes, like '2GB'"),
        (1.5, "give bytes"),
        (-1, "-1"),
        (torch.optim.lr_scheduler.StepLR, "StepLR can't be made of the parameters alone"),
        (len, "int is not an optimizer"),
    ],
)
def test_other_states_are_refused_in_one_line(states: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Loops(adam, Loops.zero_grad_first).plan("100%", states=states)


def test_a_wrapper_and_what_it_wraps_are_one_optimizer() -> None:
    class Wrapper(SGD):
        def __init__(self, inner: Optimizer) -> None:
            vars(self).update(vars(inner))

    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters())
    wrapper = Wrapper(optimizer)
    other = SGD([model.bias])
    found = optimizers_of(model.parameters())
    assert {id(each) for each in found} == {id(optimizer), id(other)}
    assert wrapper.param_groups is optimizer.param_groups
    assert not optimizers_of([nn.Parameter(torch.ones(1))])


def test_an_optimizer_that_the_process_leaves_out_of_collections_is_found() -> None:
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters())
    gc.freeze()
    assert [*map(id, optimizers_of(model.parameters()))] == [id(optimizer)]


@pytest.mark.scripts
def test_several_optimizers_are_all_counted() -> None:
    """They step one after the other."""
    loops = Loops(lambda p: SGD(list(p)[:2], momentum=0.9), Loops.zero_grad_first)
    rest = list(loops.model.parameters())[2:]
    others = AdamW(rest)
    loops.plan("100%")
    outside, block = loops.step._executor.planner.outside, [p.nbytes for p in loops.model.parameters()]
    assert outside.name == "AdamW and SGD"
    assert outside.gradients == sum(block)
    assert sum(block[:2]) + 2 * sum(block[2:]) <= outside.states <= 2 * sum(block)
    assert others.param_groups


def test_an_optimizer_that_can_not_be_counted_is_said() -> None:
    with pytest.warns(UserWarning, match=r"LBFGS calls the model itself.*those of AdamW are assumed"):
        Loops(torch.optim.LBFGS, Loops.zero_grad_first).plan("100%")


@pytest.mark.scripts
def test_the_refusal_includes_what_is_outside() -> None:
    loops = Loops(adam, Loops.zero_grad_first)
    with pytest.raises(InfeasibleError, match=r"includes .* of AdamW's states and .* of \.grad"):
        loops.plan("20%")


def test_what_is_unfrozen_is_told_from_what_was_trained_before() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4, bias=False)).requires_grad_(False)
    first, bias, second = module.parameters()
    first.requires_grad_()
    iteration, options = Iteration(module, (torch.ones(1, 2),)), Options(budget="100%")
    loop = LoopWatch(iteration, options, lambda _trained: LoopMemory())
    assert not loop.others_train()
    first.requires_grad_(False)
    second.requires_grad_()
    bias.requires_grad_()
    assert loop.others_train()
    before, since = loop.unfrozen()
    assert [*map(id, before)] == [id(first)]
    assert [*map(id, since)] == [id(bias), id(second)]
    loop.look_at_frozen()
    assert not loop.others_train()
    assert {*map(id, loop.unfrozen()[0])} == {id(bias), id(second)}
    assert loop.unfrozen()[1] == []
