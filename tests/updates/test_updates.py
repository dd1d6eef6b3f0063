"""Updates that a schedule runs are those of torch.optim, bit by bit, in weights and states.

The oracles: a loop of eager PyTorch on a copy of the model; the allocator; updates added to the graph
instead of to the program.
"""

import copy
import random

import pytest
import torch
from iterations import ITERATIONS, gpt2, seeded
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.measuring.measure import measure
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs
from memplan.graphs.errors import MismatchError
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Kind
from memplan.graphs.transformations.updates import ADAMW, When, with_updates
from memplan.model.clipping import Clipping
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.side_by_side import side_by_side
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from memplan.updates import state as states
from memplan.updates.updates import updates_weights
from not_none import not_none
from recomputing import recomputing
from simulated_device.device import SimulatedDevice
from torch import nn

OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "adam-like": lambda parameters: torch.optim.AdamW(parameters, 1e-2, weight_decay=0, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, foreach=False),
    "decay": lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=0.1, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, 0.9, dampening=0.2, foreach=False),
    "nesterov": lambda parameters: torch.optim.SGD(
        parameters, 0.1, 0.9, weight_decay=0.1, nesterov=True, foreach=False
    ),
}
MORE = {
    "amsgrad": lambda parameters: torch.optim.Adam(
        parameters, 1e-2, weight_decay=0.1, amsgrad=True, maximize=True
    ),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
}
"""Whose bits test_optimizer_options.py checks."""
WHEN: tuple[When, ...] = ("in-backward", "after")


def updating(iteration, name="adamw", when: When = "in-backward", norm=None):
    """norm: to which gradients are clipped."""
    clipping = None if norm is None else Clipping(norm)
    optimizer = (OPTIMIZERS | MORE)[name](iteration.module.parameters())
    return iteration._replace(updates=Updates(optimizer, when, clipping))


def unmeasured(program):
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    validate(graph)
    return graph


def state_of(module, optimizer):
    """Weights, buffers and states by name, copied."""
    found = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        for state, tensor in optimizer.state.get(parameter, {}).items():
            if tensor is not None:
                found[f"{name}.{state}"] = tensor.clone()
    return found


def same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(bits(tensor), bits(other[name])), name


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def eagerly(iteration, optimizer, turns, each=lambda: None):
    """An ordinary training loop. The losses."""
    losses = []
    for _ in range(turns):
        optimizer.zero_grad()
        module, inputs = iteration.module, iteration.inputs
        output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
        loss = iteration.loss_fn(output) if iteration.loss_fn else getattr(output, "loss", output)
        loss.backward()
        optimizer.step()
        each()
        losses.append(loss.item())
    return losses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ITERATIONS)
def test_bitwise_equal_to_eager_however_much_is_recomputed(name):
    rng = random.Random(name)
    optimizer, when = rng.choice(list(OPTIMIZERS)), rng.choice(WHEN)
    norm = rng.choice((None, 1e-3, 0.1, 1e3))
    iteration = updating(seeded(name), optimizer, when, norm)
    program = trace(iteration)
    graph = unmeasured(program)
    for schedule in (baseline_schedule(graph), recomputing(graph, rng)):
        simulate(graph, schedule)
        comparison = compare(iteration, PlannedStep(iteration, program, schedule))
        assert comparison.equal, comparison
        assert comparison.compared > 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("optimizer", "when", "simulated"),
    [("adamw", "in-backward", True), *((name, when, False) for name in OPTIMIZERS for when in WHEN)],
)
def test_four_iterations_are_those_of_a_training_loop(optimizer, when, simulated):
    device = SimulatedDevice() if simulated else None
    torch.manual_seed(0)
    iteration = updating(gpt2(), optimizer, when)
    module = copy.deepcopy(iteration.module)
    program = trace(iteration)
    graph = unmeasured(program)
    terms = device and Terms(graph, device=device)
    step = PlannedStep(iteration, program, recomputing(graph, random.Random(1)), terms)
    torch.manual_seed(1)
    assert isinstance(iteration.inputs, dict)
    planned = [step(**iteration.inputs) for _ in range(4)]
    if device is not None:
        device.synchronize()
    planned = [loss.item() for loss in planned]
    torch.manual_seed(1)
    other = OPTIMIZERS[optimizer](module.parameters())
    assert planned == eagerly(iteration._replace(module=module), other, 4)
    same(state_of(iteration.module, not_none(iteration.updates).optimizer), state_of(module, other))
    assert all(parameter.grad is None for parameter in iteration.module.parameters())


def test_gradients_of_negative_zeros_make_the_first_momentum():
    """0 · momentum + -0.0 is 0.0; eager takes the gradient itself."""
    module = nn.Linear(4, 3, bias=False)
    iteration = updating(
        Iteration(module, (torch.zeros(2, 4),), lambda y: -(y.square().sum() + y.sum())), "momentum"
    )
    program = trace(iteration)
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))).equal


@pytest.mark.filterwarnings("error")
def test_groups_schedules_and_checkpoints_go_on_in_the_optimizer():
    """Two groups with other decays and rates, a schedule of the rates, a weight that no group has; after two
    planned iterations the optimizer's state goes into an eager loop."""

    def made():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2), nn.Linear(2, 2))
        groups = [
            {"params": [module[0].weight, module[2].weight], "weight_decay": 0.3},
            {"params": [module[0].bias], "lr": 0.3},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.01, foreach=False)
        rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        iteration = Iteration(module, (torch.ones(3, 6),), lambda y: y.square().mean())
        return iteration._replace(updates=Updates(optimizer)), optimizer, rates

    iteration, optimizer, rates = made()
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    left = {"2.bias", "3.weight", "3.bias"}
    assert program.gradients.keys() == left
    losses = []
    for _ in range(2):
        losses.append(step(*iteration.inputs).item())
        rates.step()
    assert all((p.grad is not None) == (name in left) for name, p in iteration.module.named_parameters())

    other, eager, other_rates = made()
    assert losses == eagerly(other, eager, 2, other_rates.step)
    same(state_of(iteration.module, optimizer), state_of(other.module, eager))

    third, resumed, _ = made()
    third.module.load_state_dict(iteration.module.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    step = PlannedStep(third, program, baseline_schedule(unmeasured(program)))
    assert step(*third.inputs).item() == eagerly(other, eager, 1)[0]
    same(state_of(third.module, resumed), state_of(other.module, eager))


@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "nesterov"])
def test_every_number_of_the_optimizer_is_followed(optimizer):
    """OneCycleLR moves the betas or the momentum against the rate; the others are set by hand."""

    def made():
        torch.manual_seed(0)
        iteration = updating(seeded("perceptron"), optimizer)
        (group,) = not_none(iteration.updates).optimizer.param_groups
        group["weight_decay"] = 0.1
        rates = torch.optim.lr_scheduler.OneCycleLR(not_none(iteration.updates).optimizer, 0.1, total_steps=6)

        def change():
            rates.step()
            group["weight_decay"] *= 0.7
            for name in ("eps", "dampening"):
                if group.get(name):
                    group[name] *= 0.5

        return iteration, change

    iteration, change = made()
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    torch.manual_seed(5)
    losses = []
    for _ in range(4):
        losses.append(step(*iteration.inputs).item())
        change()
    other, change = made()
    torch.manual_seed(5)
    assert losses == eagerly(other, not_none(other.updates).optimizer, 4, change)
    same(
        state_of(iteration.module, not_none(iteration.updates).optimizer),
        state_of(other.module, not_none(other.updates).optimizer),
    )


@pytest.mark.parametrize(
    ("optimizer", "change", "line"),
    [
        ("adamw", {"amsgrad": True}, "amsgrad is True in group 0 of the optimizer; the plan is for False"),
        ("adamw", {"weight_decay": 0}, "weight_decay is 0 in group 0 .* the plan is for one above 0"),
        ("momentum", {"momentum": 0}, "momentum is 0 in group 0 .* the plan is for one above 0"),
        ("sgd", {"weight_decay": 0.1}, "weight_decay is 0.1 in group 0 .* the plan is for one of 0"),
        ("nesterov", {"nesterov": False}, "nesterov is False .* the plan is for True"),
        ("sgd", {"maximize": True}, "maximize is True"),
        ("sgd", {"params": []}, "group 0 of the optimizer has other parameters"),
        ("sgd", None, "the optimizer has 2 groups; the plan is for 1"),
    ],
)
def test_what_changes_the_operations_of_an_update_is_refused(optimizer, change, line):
    iteration = updating(seeded("perceptron"), optimizer)
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    step(*iteration.inputs)
    if change is None:
        not_none(iteration.updates).optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    else:
        not_none(iteration.updates).optimizer.param_groups[0].update(change)
    with pytest.raises(MismatchError, match=line):
        step(*iteration.inputs)


def test_comparing_leaves_no_trace():
    iteration = updating(seeded("in_place"))
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    optimizer = not_none(iteration.updates).optimizer
    before = state_of(iteration.module, optimizer)
    assert compare(iteration, step).equal
    same(state_of(iteration.module, optimizer), before)
    assert not optimizer.state
    step(*iteration.inputs)
    before = state_of(iteration.module, optimizer)
    objects = {id(t) for row in optimizer.state.values() for t in row.values()}
    side_by_side(iteration, step, repeats=1)
    same(state_of(iteration.module, optimizer), before)
    assert {id(t) for row in optimizer.state.values() for t in row.values()} == objects


def test_an_update_that_differs_is_named(monkeypatch):
    iteration = updating(seeded("perceptron"))
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    optimizer = not_none(iteration.updates).optimizer
    stepping = type(optimizer).step

    def another(self):
        self.param_groups[0]["eps"] = 1e-3
        return stepping(self)

    monkeypatch.setattr(type(optimizer), "step", another)
    monkeypatch.setattr(states, "refuse_replaced_step", lambda _optimizer: None)  # as if PyTorch's were so
    comparison = compare(iteration, step)
    assert not comparison.equal
    assert comparison.largest > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "optimizer", "when"),
    [
        ("transformer", "adamw", "in-backward"),
        ("tied", "adamw", "after"),
        ("perceptron", "sgd", "in-backward"),
        ("perceptron", "nesterov", "in-backward"),
        ("perceptron", "amsgrad", "after"),
        ("perceptron", "fused", "in-backward"),
        ("frozen", "nesterov", "after"),
    ],
)
def test_the_simulated_peak_is_the_allocators(name, optimizer, when):
    iteration = updating(seeded(name), optimizer, when)
    program = trace(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    for schedule in (baseline_schedule(graph), recomputing(graph, random.Random(2))):
        figures = simulate(graph, schedule).figures
        measured = side_by_side(iteration, PlannedStep(iteration, program, schedule), repeats=1)
        assert not_none(measured.comparison).equal
        assert abs(measured.planned.peak_bytes - figures.peak) <= 2 * 5056
    assert all(graph.operations.modes[o][0].on_host for o in updates_in(graph))


def test_updates_are_measured_in_host_memory_too():
    """As on a machine with a GPU, whose updates run on the CPU beside it: all forms, none of them true."""
    iteration = updating(seeded("half_precision"), "nesterov", "after")
    program = trace(iteration)
    stand_ins = SyntheticInputs(program, residents(program, iteration))
    measured = 0
    for operation in program.operations:
        if updates_weights(operation):
            calls = stand_ins.calls_on_host()
            assert measure(calls).seconds > 0
            assert all(tensor.device.type == "cpu" for call in calls for tensor in call.args[:3])
            measured += 1
        stand_ins.advance()
    assert measured == len(list(iteration.module.parameters()))


def updates_in(graph):
    return [o for o, name in enumerate(graph.operations.name) if name.endswith("/update")]


def test_only_the_loss_is_left_and_weights_stay_in_place():
    iteration = updating(seeded("gpt2"))
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    step.run(iteration.inputs)
    places = {name: p.data_ptr() for name, p in iteration.module.named_parameters()}
    assert live_peak(lambda: step.run(iteration.inputs)).left_bytes == 4
    assert {name: p.data_ptr() for name, p in iteration.module.named_parameters()} == places


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", [None, 1.0])
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", ["tied", "frozen", "gpt2", "in_place"])
def test_updates_in_the_program_are_those_of_the_graph(name, when, norm):
    """graphs/transformations/updates.py adds the same operations at the same places to the plain program's
    graph."""
    baseline = unmeasured(trace(seeded(name)))
    rates = {"device_rate": 1.0, "host_rate": 1.0, "clip_rate": norm}
    other = with_updates(baseline, optimizer=ADAMW, when=when, **rates)
    graph = unmeasured(trace(updating(seeded(name), "adamw", when, norm)))

    def reported(graph):
        of = graph.tensors.name
        operations = (graph.operation(o) for o in range(len(graph.operations)))
        return [
            (o.name, o.phase, {of[x] for x in o.reads}, {of[x] for x in o.mutates}, o.recompute, o.layer)
            for o in operations
        ]

    assert reported(graph) == reported(other)
    assert set(graph.tensors.name) == set(other.tensors.name)
    assert [graph.tensors.name[x] for x in graph.results] == ["loss", *(["grad_norm"] if norm else [])]
    for state in (x for x in range(len(graph.tensors)) if graph.tensors.kind[x] == Kind.OPTIMIZER_STATE):
        there = other.tensor(other.tensor_index[graph.tensors.name[state]])
        assert there == graph.tensor(state)


def test_parameters_updated_unequally_often_are_refused():
    iteration = updating(seeded("perceptron"))
    program = trace(iteration)
    step = PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))
    step(*iteration.inputs)
    next(iter(not_none(iteration.updates).optimizer.state.values()))["step"] += 1
    with pytest.raises(MismatchError, match="more often than others"):
        step(*iteration.inputs)
