"""Early updates, taken back where gradients are clipped after all: bit by bit a loop with clip_grad_norm_."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import memplan
import pytest
import torch
import unplanned
from memplan.devices.measuring.measure import Measurement
from memplan.graphs.errors import InputError, MemplanError
from memplan.graphs.machine import Links, Machine
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.runtime.run.changes import changed_residents
from memplan.runtime.run.cycle import Terms
from memplan.runtime.run.recovery import UNDONE
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import IterationResult, PlannedStep
from memplan.tracing.trace import trace
from memplan.updates import early
from memplan.updates.early import journal_rates, updates_early, with_undo
from memplan.updates.rules import effort, if_finite
from memplan.updates.updates import updates_weights
from recomputing import recomputing
from simulated_device.device import SimulatedDevice
from torch import Tensor, nn
from torch.nn import functional
from transfers import MACHINE, everything, seeded, unmeasured, wandering, with_modes

TURNS = 6


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], 1e-2, 0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-2)


def clipping(name: str, make: Any = adamw, *, waits: bool = False, norm: float = 1.0) -> Iteration:
    """An iteration with clipped updates, early ones unless they are to wait."""
    iteration = seeded(name)
    optimizer = make(iteration.module.parameters())
    return iteration._replace(updates=Updates(optimizer, clipping=Clipping(norm), early=not waits))


def trained(iteration: Iteration, run: Callable[[], Any], norms: list[float]) -> tuple[list[Any], Any]:
    """Train with a largest norm for each iteration; return losses, norms, and then all tensors."""
    assert iteration.updates is not None
    assert iteration.updates.clipping is not None
    outcomes: list[Any] = []
    for turn, norm in enumerate(norms):
        iteration.updates.clipping.max_norm = norm
        torch.manual_seed(turn)
        outcomes.append(run())
    return outcomes, everything(iteration)


def eagerly(iteration: Iteration, norms: list[float]) -> tuple[list[Any], Any]:
    return trained(iteration, lambda: run_eager(iteration), norms)


def some_norms(name: str, make: Any = adamw) -> list[float]:
    """Norms of which about every other clips: a little below, and a little above those of a loop."""
    free, _tensors = eagerly(clipping(name, make, waits=True), [1e9] * TURNS)
    return [each.grad_norm.item() * (0.7, 1.5)[turn % 2] for turn, each in enumerate(free)]


def assert_same(found: tuple[list[Any], Any], expected: tuple[list[Any], Any]) -> int:
    """Compare all bits, NaN too; return how many iterations were rolled back."""
    for own, eager in zip(found[0], expected[0], strict=True):
        assert equal(own.loss, eager.loss)
        assert equal(own.grad_norm, eager.grad_norm)
    assert found[1].keys() == expected[1].keys()
    for name, tensor in found[1].items():
        assert equal(tensor, expected[1][name]), name
    return sum(each.rolled_back for each in found[0])


def equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", [adamw, momentum])
@pytest.mark.parametrize("name", ["perceptron", "tied", "frozen", "in_place", "resnet", "half_precision"])
def test_any_schedule_has_the_bits_of_a_loop_that_clips(name: str, make: Any) -> None:
    norms = some_norms(name, make)
    iteration = clipping(name, make)
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    step = PlannedStep(iteration, program, recomputing(graph, random.Random(name)))
    found = trained(iteration, lambda: step.run(iteration.inputs), norms)
    expected = eagerly(clipping(name, make, waits=True), norms)
    clipped = sum(each.grad_norm > norm for each, norm in zip(expected[0], norms, strict=True))
    assert assert_same(found, expected) == clipped
    assert 0 < clipped < TURNS


@pytest.mark.parametrize("number", range(4))
def test_schedules_that_move_everything_have_the_same_bits(number: int) -> None:
    """Weights, states and gradients in all memories, updates on the CPU, and jobs that go on meanwhile."""
    norms, rng = some_norms("perceptron"), random.Random(number)
    program = trace(clipping("perceptron"))
    iteration = clipping("perceptron")
    graph = with_modes(unmeasured(program), program, rng)
    schedule = wandering(graph, rng)
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    outcomes, _tensors = trained(iteration, lambda: step.run(iteration.inputs), norms)
    step.restore_to_device()
    found = outcomes, everything(iteration)
    assert assert_same(found, eagerly(clipping("perceptron", waits=True), norms)) >= TURNS // 2


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
def test_norms_that_are_not_finite(bad: float) -> None:
    """Of the last, gradients are finite and their norm is not: the coefficient is 0."""

    def iteration(*, waits: bool) -> Iteration:
        made = clipping("perceptron", waits=waits)
        return made._replace(loss_fn=lambda output: (output * bad).sum())

    own = iteration(waits=False)
    program = trace(own)
    step = PlannedStep(own, program, recomputing(unmeasured(program), random.Random(1)))
    found = trained(own, lambda: step.run(own.inputs), [1.0, float("inf")])
    expected = eagerly(iteration(waits=True), [1.0, float("inf")])
    assert not any(each.grad_norm.isfinite() for each in expected[0])
    assert assert_same(found, expected) == 2


def test_within_the_norm_nothing_waits_and_gradients_go_at_once() -> None:
    """An update reads neither norm nor coefficient, and the peak is that of updates that are not clipped."""
    graphs = {}
    for waits in (False, True):
        layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
        updates = Updates(adamw(layers.parameters()), clipping=Clipping(1.0), early=not waits)
        program = trace(Iteration(layers, (torch.randn(2, 32),), lambda output: output.sum(), updates))
        graphs[waits] = unmeasured(program)
        found = [each for each in program.operations if updates_weights(each)]
        assert updates_early(program) is not waits
        assert all(len(each.reads) == 1 + waits for each in found)
    assert baseline(graphs[False]).peak < baseline(graphs[True]).peak


# ── devices ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("on_host", [False, True])
def test_on_a_late_device_within_the_planned_peak(on_host: bool) -> None:
    """Updates on the device, or on the CPU beside it; the second pass takes no more than the first."""
    norms = some_norms("perceptron")
    iteration = clipping("perceptron")
    program = trace(iteration)
    costs = [
        Cost(1e-3, _workspace(program, place), 1e-6 if on_host and updates_weights(one) else None)
        for place, one in enumerate(program.operations)
    ]
    graph = graph_of(program, costs, block_bytes=512)
    machine = Machine(links=Links(1e9, 1e9))
    peak = baseline(graph).peak
    budget, solver = (peak * 8 // 10, "zero-offload") if on_host else (peak, "store-all")
    schedule = solve(solver, Problem(graph, budget, machine if on_host else None)).schedule
    assert bool(schedule.wheres[schedule.verbs == Verb.COMPUTE].any()) is on_host
    device = SimulatedDevice(seed=3)
    terms = Terms(graph, budget, machine if on_host else None, device=device)
    step = PlannedStep(iteration, program, schedule, terms)

    def run() -> IterationResult:
        """Run an iteration, and leave none of its results on the device."""
        outcome = step.run(iteration.inputs)
        device.synchronize()
        assert outcome.loss is not None
        assert outcome.grad_norm is not None
        numbers = torch.stack([outcome.loss, outcome.grad_norm])
        return IterationResult(numbers[0], {}, {}, numbers[1], rolled_back=outcome.rolled_back)

    outcomes, _tensors = trained(iteration, run, norms)
    device.synchronize()
    assert device.peak_bytes() <= simulate(graph, schedule, machine=machine).figures.peak
    step.restore_to_device()
    device.synchronize()
    found = outcomes, everything(iteration)
    assert assert_same(found, eagerly(clipping("perceptron", waits=True), norms)) >= TURNS // 2


def _workspace(program: Program, place: int) -> int:
    """More than an operation on so small tensors needs, in whole blocks."""
    made = (*program.operations[place].writes, *program.operations[place].mutates)
    return 8 * 512 + 4 * sum(program.storages[x].bytes for x in made)


def test_copies_to_the_journal_are_in_the_planned_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of weight and states, from the device or from host memory, and the clipped gradient."""
    monkeypatch.setattr(early, "journal_rates", lambda _device: (1e3, 1e4))
    program = trace(clipping("perceptron"))
    measured = [Measurement(1.0, 0.0, 10, host_seconds=2.0)] * len(program.operations)
    for one, operation in zip(with_undo(measured, program, moves=True), program.operations, strict=True):
        kept = sum(program.storages[x].bytes for x in operation.mutates)
        assert one.seconds == 1.0 + kept / 1e3
        assert one.host_seconds == 2.0 + kept / 1e4
        weight = program.storages[operation.mutates[0]].bytes if operation.mutates else 0
        assert one.peak_bytes == one.host_bytes + 10 == 10 + weight


def test_copies_ahead_cost_what_they_exceed_the_computations_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "device_of", lambda _device: SimulatedDevice())
    program = trace(clipping("perceptron"))
    measured = [Measurement(1.0, 0.0, 10)] * len(program.operations)
    kept = sum(program.storages[x].bytes for x in changed_residents(program))
    for rate in (1e9, 1e3, kept / len(measured)):
        monkeypatch.setattr(early, "journal_rates", lambda _device, rate=rate: (rate, 1e9))
        seconds = sum(one.seconds for one in with_undo(measured, program, moves=False))
        slowest = max(kept / rate, len(measured))
        assert slowest <= seconds <= slowest + len(measured) * (rate < 1e9)


@pytest.mark.parametrize("clips", [False, True])
def test_an_early_update_costs_what_its_rule_does_without_clipping(clips: bool) -> None:
    own: dict[str, Any] = {"weight_decay": 0.1, "amsgrad": False}
    clip = {"clip": 1.0} if clips else {}
    rule = effort(early.RULES["adamw"], own)
    found = effort(early.early, {"update": "adamw", **own, **clip})
    assert found == (rule.passes, rule.temporaries + clips)
    waiting = effort(if_finite, {"update": "adamw", **own, **clip})
    assert waiting == effort(early.RULES["adamw"], {**own, **clip})


def test_rates_of_the_journal_are_measured() -> None:
    assert all(rate > 1e6 for rate in journal_rates(torch.device("cpu")))


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("norm", [1e-3, 1e9])
def test_an_iteration_that_fails_is_undone(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In either pass: it can be repeated, to the same bits."""
    iteration = clipping("perceptron", norm=norm)
    program = trace(iteration)
    step = PlannedStep(iteration, program, recomputing(unmeasured(program), random.Random(1)))
    calls, failing = 0, set[int]()
    own = early.RULES["adamw"]

    def adamw_rule(*arguments: Any, **keywords: Any) -> None:
        nonlocal calls
        calls += 1
        if calls in failing:
            raise RuntimeError("on purpose")
        own(*arguments, **keywords)

    monkeypatch.setitem(early.RULES, "adamw", adamw_rule)
    torch.manual_seed(0)
    step.run(iteration.inputs)
    each = calls
    failing.add(calls + each - 1)
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="on purpose") as caught:
        step.run(iteration.inputs)
    assert caught.value.__notes__ == [UNDONE]
    step.run(iteration.inputs)
    expected = clipping("perceptron", norm=norm, waits=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        run_eager(expected)
    found, wanted = everything(iteration), everything(expected)
    assert all(equal(found[name], wanted[name]) for name in wanted)


def test_a_job_that_fails_when_its_iteration_has_ended_leaves_weights_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal is the next iteration's by then: half an update is never taken for a whole one."""
    iteration = clipping("perceptron", norm=1e9)
    program = trace(iteration)
    graph = graph_of(
        program, [Cost(1e-3, host_seconds=1e-6 if updates_weights(o) else None) for o in program.operations]
    )
    schedule = solve("zero-offload", Problem(graph, baseline(graph).peak * 8 // 10, MACHINE)).schedule
    step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
    step.run(iteration.inputs)
    monkeypatch.setitem(early.RULES, "adamw", _fails)
    with pytest.raises((RuntimeError, MemplanError)):  # noqa: PT012, the second or the third tells
        for _ in range(3):
            step.run(iteration.inputs)
    with pytest.raises(MemplanError, match="load the weights"):
        iteration.module.state_dict()


def _fails(*_arguments: Any, **_keywords: Any) -> None:
    raise RuntimeError("on purpose")


# ── memplan.optimize ─────────────────────────────────────────────────────────────────────────────────


def model() -> nn.Module:
    torch.manual_seed(3)
    wide = [
        nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.Dropout(0.2), nn.Linear(48, 16))
        for _ in range(2)
    ]
    return nn.Sequential(nn.Linear(6, 16), *wide, nn.Linear(16, 3))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(24, 6), torch.randint(3, (24,))) for _ in range(count)]


def planned(module: nn.Module, optimizer: Any, **options: Any) -> memplan.Step:
    x, labels = batches(1)[0]
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False, "max_grad_norm": 1.0}
    given |= {
        "verify": False,
        "progress": False,
        "loss_fn": functional.cross_entropy,
        "early_updates": True,
        "optimizer": optimizer,
    }
    return memplan.optimize(module, x, targets=labels, **(given | options))


MOVED = {"machine": MACHINE, "solver": "l2l", "budget": "90%"}


@pytest.mark.scripts
@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, MOVED, {"ema": 0.9}, {"rollback_on_error": True, **MOVED}], ids=str)
@pytest.mark.parametrize("batches_per_update", [1, 2])
def test_a_loop_sees_what_it_would_see(options: Any, batches_per_update: int) -> None:
    """Losses, norms, weights, buffers, states; how often an iteration ran twice, and one warning of it."""
    module, given = model(), batches(26)
    other = copy.deepcopy(module)
    own, eager = adamw(module.parameters()), adamw(other.parameters())
    events: list[Any] = []
    step = planned(
        module, own, gradient_accumulation_steps=batches_per_update, progress=events.append, **options
    )
    norms, seen = [0.5, 0.8, 1.1, 10.0], list[Tensor]()
    twice = 0
    torch.manual_seed(11)
    with pytest.warns(UserWarning, match=r"early_updates: \d+ of 2\d iterations were") as warned:  # noqa: PT031
        for number, (x, labels) in enumerate(given):
            step.max_grad_norm = norms[number // batches_per_update % 4]
            seen.append(step(x, targets=labels))
            if step.optimizer_stepped:
                assert step.grad_norm is not None
                seen.append(step.grad_norm)
    assert len([each for each in warned if "rolled back" in str(each.message)]) == 1
    torch.manual_seed(11)
    expected: list[Tensor] = []
    for number, (x, labels) in enumerate(given):
        loss = functional.cross_entropy(other(x), labels)
        (loss / batches_per_update).backward()
        expected.append(loss.detach())
        if (number + 1) % batches_per_update == 0:
            most = norms[number // batches_per_update % 4]
            expected.append(nn.utils.clip_grad_norm_(other.parameters(), most))
            twice += bool(expected[-1] > most)
            eager.step()
            eager.zero_grad()
    assert all(map(torch.equal, seen, expected))
    step.restore_to_device()
    assert all(map(torch.equal, module.state_dict().values(), other.state_dict().values()))
    for weight, theirs in zip(module.parameters(), other.parameters(), strict=True):
        row = own.state[weight]
        assert all(torch.equal(row[state], value) for state, value in eager.state[theirs].items())
    report = step.report()
    assert 0 < twice < 26
    assert report.plans[0].rolled_back == events[-1].rolled_back == twice
    assert f"{twice} rolled back" in str(events[-1])
    assert f"{twice} of {report.plans[0].iterations} iterations were rolled back and ran twice" in str(report)
    assert "early updates copy" in str(report)


@pytest.mark.scripts
@pytest.mark.parametrize("norm", [None, 1.0])
def test_of_a_scaled_loss_what_is_infinite_is_taken_back(norm: float | None) -> None:
    """Buffers and random numbers go on, weights do not."""
    module, given = model(), batches(8)
    other = copy.deepcopy(module)
    own, eager = momentum(module.parameters()), momentum(other.parameters())
    first: dict[str, Any] = {"init_scale": 2.0**20, "growth_factor": 1.7, "growth_interval": 2}
    scaler, theirs = torch.amp.GradScaler("cpu", **first), torch.amp.GradScaler("cpu", **first)
    step = planned(module, own, scaler=scaler, max_grad_norm=norm, autocast=torch.float16)
    skipped = []
    torch.manual_seed(11)
    losses = []
    for x, labels in given:
        losses.append(step(x, targets=labels))
        skipped.append(not step.optimizer_stepped)
    torch.manual_seed(11)
    for loss, (x, labels) in zip(losses, given, strict=True):
        with torch.autocast("cpu", dtype=torch.float16):
            wanted = functional.cross_entropy(other(x), labels)
        assert torch.equal(loss, wanted)
        theirs.scale(wanted).backward()
        if norm is not None:
            theirs.unscale_(eager)
            nn.utils.clip_grad_norm_(other.parameters(), norm)
        theirs.step(eager)
        theirs.update()
        eager.zero_grad()
    assert 0 < sum(skipped) < 8
    assert scaler.state_dict() == theirs.state_dict()
    assert all(map(torch.equal, module.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"optimizer": None}, "your loop steps after the plan"),
        ({"optimizer": unplanned.NAdam}, "NAdam steps after the plan"),
        ({"max_grad_norm": None}, "goes with max_grad_norm= or scaler="),
        ({"update": "after"}, "update='after' contradict each other"),
        ({"cuda_graph": True}, "cuda_graph=True are not planned together"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options: dict[str, Any], line: str) -> None:
    module = model()
    make = options.get("optimizer", adamw)
    given = {**options, "optimizer": make and make(module.parameters())}
    if given["optimizer"] is None:
        given["max_grad_norm"] = None
    with pytest.raises(InputError, match=line):
        planned(module, **given)
    given.pop("optimizer")
    without = {name: value for name, value in given.items() if name != "cuda_graph"}
    if make is adamw:  # the way out
        assert planned(module, adamw(module.parameters()), **without, early_updates=False)


def test_plans_leave_host_memory_to_the_copies() -> None:
    """With less than both need the plan offloads less; with less than the copies need it is refused."""
    module = model()
    kept = 3 * sum(each.nbytes for each in module.parameters())
    machine = Machine(links=Links(1e9, 1e9), host_capacity=kept // 2)
    with pytest.raises(InputError, match=r"early_updates=True keeps .* bytes in host memory"):
        planned(module, adamw(module.parameters()), machine=machine)
    machine = replace(machine, host_capacity=int(1.3 * kept))
    moved: dict[str, Any] = {"solver": "joint", "budget": "80%", "time_limit": 1}
    step = planned(module, adamw(module.parameters()), machine=machine, **moved)
    assert step.plan.figures.host_peak + step.plans[0].journal.bytes <= 1.3 * kept
