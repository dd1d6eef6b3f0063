"""Lion in a plan, bit by bit as other packages compute it; and the catalogue that a new file joins."""

import copy
import random
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import hostile
import memplan
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.cli.optimizer_options import OPTIMIZER_NAMES
from memplan.graphs.errors import InputError, MismatchError
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from memplan.updates.catalogue import FUNCTIONS, OPTIMIZERS, is_planned, titles
from memplan.updates.optimizers.lion import Lion
from memplan.updates.updates import updates_weights
from torch import nn
from transfers import MACHINE, assert_equal, seeded, train_by_plan, train_eagerly, wandering


def class_of(module: str) -> Any:
    """Return a Lion written here by the text of a package, with the package's name.

    timm averages by `lerp`, lion-pytorch by products and sums.
    """

    class Written(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **others):
            if module.startswith("timm"):
                others = {"caution": False, "corrected_weight_decay": False, "foreach": None} | others
                others = {"maximize": False} | others
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, **others})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(group, weight, -weight.grad if group.get("maximize") else weight.grad)

        def _update(self, group, weight, gradient):
            (beta1, beta2), row = group["betas"], self.state[weight]
            if len(row) == 0:
                row["exp_avg"] = torch.zeros_like(weight)
            average = row["exp_avg"]
            weight.data.mul_(1.0 - group["lr"] * group["weight_decay"])
            if module.startswith("timm"):
                weight.add_(average.lerp(gradient, 1 - beta1).sign_(), alpha=-group["lr"])
                average.lerp_(gradient, 1 - beta2)
            else:
                direction = average.clone().mul_(beta1).add(gradient, alpha=1.0 - beta1).sgn_()
                weight.add_(direction, alpha=-group["lr"])
                average.mul_(beta2).add_(gradient, alpha=1.0 - beta2)

    Written.__module__, Written.__qualname__ = module, "Lion"
    step = Written.step.__wrapped__
    written = FunctionType(step.__code__, {**globals(), "__name__": module}, "step", step.__defaults__)
    Written.step = torch.no_grad()(written)
    return Written


LION_PYTORCH, TIMM = class_of("lion_pytorch.lion_pytorch"), class_of("timm.optim.lion")


def packaged() -> Any:
    """Return the class of the package lion-pytorch, where it is installed."""
    return pytest.importorskip("lion_pytorch").Lion


CLASSES = {
    "lion-pytorch": lambda: LION_PYTORCH,
    "timm": lambda: TIMM,
    "own": lambda: Lion,
    "package": packaged,
}


class Small(nn.Module):
    """Two layers, one number, and a weight that is no multiple of a vector."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.wide = nn.Parameter(torch.randn(5, 67, dtype=dtype))
        self.turned = nn.Parameter(torch.randn(3, 67, dtype=dtype).t())
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x):
        return (((x @ self.wide).tanh() @ self.turned) * self.scale).square().mean()


def planned_step(module, optimizer, x):
    iteration = Iteration(module, (x,), None, Updates(optimizer))
    program = trace(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    return PlannedStep(iteration, program, baseline_schedule(graph))


def assert_same(one, other, optimizer, eager):
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert optimizer.state[mine].keys() == eager.state[theirs].keys() == {"exp_avg"}
        assert torch.equal(optimizer.state[mine]["exp_avg"], eager.state[theirs]["exp_avg"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=8, deadline=None)
@given(
    decay=st.sampled_from([0.0, 0.3]),
    betas=st.sampled_from([(0.9, 0.99), (0.95, 0.98), (0.0, 0.5)]),
    rate=st.floats(1e-4, 0.02),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_four_steps_are_those_of_the_package(name, decay, betas, rate, dtype):
    make = CLASSES[name]()
    torch.manual_seed(0)
    module = Small(dtype)
    other, x = copy.deepcopy(module), torch.randn(4, 5, dtype=dtype)
    optimizer, eager = (
        make(one.parameters(), lr=rate, betas=betas, weight_decay=decay) for one in (module, other)
    )
    assert is_planned(optimizer)
    step = planned_step(module, optimizer, x)
    for _ in range(4):
        eager.zero_grad()
        loss = other(x)
        loss.backward()
        eager.step()
        assert torch.equal(step(x), loss)
        for one in (optimizer, eager):  # numbers are read in each iteration
            one.param_groups[0]["lr"] *= 0.7
            one.param_groups[0]["betas"] = (one.param_groups[0]["betas"][0] * 0.9, betas[1])
    assert_same(module, other, optimizer, eager)


def test_maximizing_is_planned():
    torch.manual_seed(0)
    module = Small()
    other, x = copy.deepcopy(module), torch.randn(4, 5)
    optimizer, eager = (TIMM(one.parameters(), lr=1e-2, maximize=True) for one in (module, other))
    step = planned_step(module, optimizer, x)
    for _ in range(3):
        eager.zero_grad()
        other(x).backward()
        eager.step()
        step(x)
    assert_same(module, other, optimizer, eager)


def lion(parameters):
    return LION_PYTORCH([p for p in parameters if p.requires_grad], 1e-2, weight_decay=0.1)


@pytest.mark.parametrize("name", ["perceptron", "tied"])
def test_random_schedules_with_updates_on_the_host_give_what_eager_gives(name):
    """Weights, states and gradients move between memories, and some weights are updated on the host."""
    turns, on_host = 3, 0
    eager, program = train_eagerly(seeded(name, lion), turns), trace(seeded(name, lion))
    for number in range(4):
        rng = random.Random(number)
        iteration = seeded(name, lion)
        costs = [Cost(1.0, 0, 1.0 if updates_weights(one) else None, 0) for one in program.operations]
        graph = graph_of(program, costs)
        schedule = wandering(graph, rng)
        machine = replace(MACHINE, host_capacity=simulate(graph, schedule, machine=MACHINE).figures.host_peak)
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, machine))
        assert_equal(train_by_plan(iteration, step, turns), eager)
        rows = ((operation, mode) for verb, operation, mode in schedule.rows() if verb == Verb.COMPUTE)
        on_host += sum(mode != DEFAULT_MODE and graph.on_host(operation, mode) for operation, mode in rows)
    assert on_host


@pytest.mark.parametrize("name", ["perceptron", "tied"])
def test_random_schedules_on_a_hostile_device_give_what_eager_gives(name):
    for number in range(3):
        hostile.check(name, lion, number)


def test_optimize_plans_it_and_checkpoints_are_the_packages(recwarn):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    other, x = copy.deepcopy(module), torch.randn(16, 8)
    optimizer, eager = (LION_PYTORCH(one.parameters(), lr=1e-3) for one in (module, other))
    step = memplan.optimize(
        module, x, budget="100%", loss_fn=torch.sum, optimizer=optimizer, solver="store-all", cache=False
    )
    assert not any("is not in the plan" in str(warning.message) for warning in recwarn)
    for _ in range(3):
        step(x)
        eager.zero_grad()
        torch.sum(other(x)).backward()
        eager.step()
    assert_same(module, other, optimizer, eager)
    eager.load_state_dict(optimizer.state_dict())
    assert list(optimizer.state_dict()["state"][0]) == ["exp_avg"]


class Sloppy(LION_PYTORCH):
    """A later version of the package that averages otherwise."""

    def _update(self, group, weight, gradient):
        super()._update(group, weight, gradient)
        self.state[weight]["exp_avg"].mul_(1.0 + 2**-20)


Sloppy.__module__, Sloppy.__qualname__ = LION_PYTORCH.__module__, "Lion"


@pytest.mark.parametrize(
    "make",
    [
        lambda p: TIMM(p, caution=True),
        lambda p: TIMM(p, corrected_weight_decay=True),
        lambda p: TIMM(p, lr=torch.tensor(1e-3)),
        lambda p: Sloppy(p),
        lambda p: type("Lion", (LION_PYTORCH,), {})(p),
        lambda p: Lion([nn.Parameter(torch.ones(2, dtype=torch.complex64))]),
    ],
    ids=["caution", "corrected", "tensor", "version", "subclass", "complex"],
)
def test_what_is_not_known_bit_by_bit_steps_after_the_plan(make):
    assert not is_planned(make(nn.Linear(2, 2).parameters()))


def test_decoupled_decay_of_lion_pytorch_steps_after_the_plan():
    assert not is_planned(packaged()(nn.Linear(2, 2).parameters(), decoupled_weight_decay=True))


def test_a_switch_that_is_turned_later_is_refused():
    module, x = Small(), torch.randn(4, 5)
    optimizer = TIMM(module.parameters())
    step = planned_step(module, optimizer, x)
    step(x)
    optimizer.param_groups[0]["caution"] = True
    with pytest.raises(MismatchError, match="caution is True in group 0 of the optimizer; the plan is for"):
        step(x)


def test_asking_whether_it_is_planned_changes_nothing():
    module = nn.Linear(3, 3)
    optimizer = LION_PYTORCH(module.parameters())
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.register_step_post_hook(lambda *_, **_named: pytest.fail("a hook has run"))
    assert is_planned(optimizer)
    assert not optimizer.state
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert schedule.last_epoch == 0
    assert not getattr(optimizer, "_opt_called", False)


# ── the catalogue ───────────────────────────────────────────────────────────────────────────────────


def test_an_optimizer_is_a_file():
    """The command line, which must not import torch, lists the files; the catalogue imports them."""
    assert list(OPTIMIZERS) == OPTIMIZER_NAMES
    assert {"adam", "adamw", "lion", "rmsprop", "sgd"} <= OPTIMIZERS.keys()
    assert all(call == function.call.__name__ for call, function in FUNCTIONS.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_description_is_whole(name):
    described = OPTIMIZERS[name]
    if described.package:
        pytest.importorskip(described.package)
    make: Any = described.make
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = make([weight])
    group = described.options(optimizer, optimizer.param_groups[0])
    rule = described.rule(group, 0, weight)
    assert is_planned(optimizer)
    assert described.numbers[0] == "lr"
    assert FUNCTIONS[rule.target.__name__].call is rule.target
    assert any(function.call is rule.target for function in described.functions)
    switches = {"beta", "decoupled", "factored", "relative", "scaled"}
    assert {name.rstrip("12") for name in rule.keywords} <= {*described.numbers, *group, *switches}
    known = {"beta1": "betas", "beta2": "betas"}
    assert {known.get(name, name) for name in described.zeros} <= group.keys()
    assert described.title in (Path(__file__).parents[3] / "docs" / "training" / "optimizers.md").read_text()


def test_an_optimizer_without_description_is_refused_with_all_that_have_one():
    iteration = seeded("perceptron")
    optimizer = torch.optim.Adamax(iteration.module.parameters())
    with pytest.raises(InputError, match=f"Adamax can't be planned: use {titles()}"):
        trace(iteration._replace(updates=Updates(optimizer)))
