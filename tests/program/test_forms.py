"""Kernels that return another form than the trace says: the program has the real one, on the whole path."""

import random

import memplan
import pytest
import torch
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs, substitute
from memplan.graphs.machines.presets import find_preset
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.profile.estimate import estimate_program
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.graph import Cost, graph_of
from memplan.program.program import values_read
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.torch_support.below_autograd import as_traced
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.layouts import results_of
from memplan.tracing.output_layouts import residents, trace_real_layouts
from memplan.tracing.trace import trace
from recomputing import recomputing
from torch import nn
from transfers import MACHINE, absent
from unusual_forms import NORMS_FIRST, UNUSUAL, patches, seeded

NAMES = list(UNUSUAL)


def profiled(iteration):
    program = trace_real_layouts(iteration)
    return program, graph_from(program, measure_program(program, residents(program, iteration)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*NAMES, *NORMS_FIRST])
def test_recomputing(name):
    iteration = seeded(name)
    program, graph = profiled(iteration)
    schedule = recomputing(graph, random.Random(0), share=0.5)
    step = PlannedStep(iteration, program, schedule, Terms(graph))
    assert compare(iteration, step).equal
    assert peaks(step, iteration.inputs).device == simulate(graph, schedule).figures.peak


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*NAMES, *NORMS_FIRST])
def test_offloading(name):
    """What is put together again from its bytes has the real form."""
    iteration = seeded(name)
    program, graph = profiled(iteration)
    for number in range(2):
        runs = [(index, 0) for index in range(len(program.operations))]
        schedule = absent(graph, runs, random.Random(number), share=0.7)
        step = PlannedStep(iteration, program, schedule, Terms(graph, None, MACHINE))
        assert compare(iteration, step).equal
        figures = simulate(graph, schedule, machine=MACHINE).figures
        assert peaks(step, iteration.inputs)[:3] == (figures.peak, figures.host_peak, figures.disk_peak)
        step.restore_to_device()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["lstm", "points"])
def test_optimize(name):
    iteration = seeded(name)
    before = [parameter.clone() for parameter in iteration.module.parameters()]
    step = memplan.optimize(iteration.module, iteration.inputs, budget="100%", solver="store-all")
    loss = step(*iteration.inputs)
    assert all(map(torch.equal, iteration.module.parameters(), before))
    assert torch.equal(loss, iteration.module(*iteration.inputs).detach())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"bands"}))
def test_every_result_of_every_operation_has_the_form_of_its_value(name):
    iteration = seeded(name)
    program = trace_real_layouts(iteration)
    assert program.fingerprint != trace(iteration).fingerprint, "the fakes are right: this shows nothing"
    check_forms(program, iteration)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NORMS_FIRST)
def test_a_gradient_that_nobody_asked_for_has_no_memory(name):
    iteration = seeded(name)
    program = trace_real_layouts(iteration)
    assert program.fingerprint == trace(iteration).fingerprint
    backward = next(o for o in program.operations if "native_batch_norm_backward" in o.name)
    assert len(backward.writes) == 2  # of weight and bias
    check_forms(program, iteration)


def test_a_kernel_that_returns_nothing_where_its_fake_returns_a_tensor(request):
    library = torch.library.Library("memplan_forms", "FRAGMENT")
    request.addfinalizer(library._destroy)
    library.define("one_of_two(Tensor x) -> (Tensor, Tensor)")
    library.impl("one_of_two", lambda x: (x.exp(), None), "CPU")
    library.impl("one_of_two", lambda x: (torch.empty_like(x), torch.empty_like(x)), "Meta")

    def loss(output):
        return (torch.ops.memplan_forms.one_of_two(output.detach())[0] + output).sum()

    iteration = Iteration(nn.Linear(2, 2), (torch.randn(3, 2),), loss)
    program = trace_real_layouts(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(graph))).equal
    check_forms(program, iteration)


def check_forms(program, iteration):
    stand_ins = SyntheticInputs(program, residents(program, iteration))
    with as_traced(program.device):
        for operation in program.operations:
            for output, result in zip(operation.call.outputs, results_of(stand_ins.call()()), strict=False):
                if output is not None:
                    value = program.values[output]
                    layout = (tuple(result.shape), result.stride(), result.storage_offset())
                    assert (*layout, result.dtype, result.device) == value[1:]
            stand_ins.advance()


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (lambda x: x.view_as(x), r"odd: \S+odd.default returns its input's memory where it says it doesn't"),
        (
            lambda x: x.item(),
            "odd can't run by itself: a Tensor with 6 elements cannot be converted to Scalar",
        ),
    ],
)
def test_a_kernel_that_can_not_be_planned(kernel, line, request):
    """With memory shared behind the plan's back, a delete of the one tensor would take the other along."""
    library = torch.library.Library("memplan_forms", "FRAGMENT")
    request.addfinalizer(library._destroy)
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", kernel, "CPU")
    library.impl("odd", torch.empty_like, "Meta")

    def loss(output):
        return (torch.ops.memplan_forms.odd(output.detach()) + output).sum()

    with pytest.raises(TraceError, match=line):
        trace_real_layouts(Iteration(nn.Linear(2, 2), (torch.randn(3, 2),), loss))


def test_changes_in_place_of_parts_of_a_block():
    """A GRU's gates: between the numbers of each there are the others'. The kernels' paths depend on that."""
    torch.manual_seed(0)
    gru, x = nn.GRU(8, 16, batch_first=True), torch.randn(4, 6, 8)
    iteration = Iteration(gru, (x,), lambda output: output[0].square().mean())
    program = trace_real_layouts(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(graph))).equal
    assert len(estimate_program(program, find_preset("rtx3060").gpu)) == len(program.operations)


def pinball(y):
    """Quantile loss; the gradient of `torch.maximum` is filled in place."""
    return torch.maximum(0.3 * y, -0.7 * y).mean()


def every_second(y):
    y = y * 1.0
    picked = y[:, ::2]
    picked.add_(1.5)
    return picked.sum((1, 2)).square().sum()


def masked(y):
    y = (2.0 * y).masked_fill_(y > 0, 0.5)
    return y.sum((0, 2)).square().sum()


def written_in_parts(y):
    """A block is filled by parts, then a view of it is changed: Longformer's scores."""
    made = y.new_zeros(8, 36, 12)
    made[:, 1:] = y.transpose(1, 2)[:, :-1]
    turned = made.transpose(1, 2)
    turned += y.detach().sigmoid()
    return turned.sum((0, 2)).square().sum()


def changed_by_a_part(y):
    other = y.detach().exp()
    other[:, :, :5] = 0.25
    turned = other.transpose(1, 2)
    y = (y * 1.0).transpose(1, 2)
    y *= turned
    return y.sum((0, 2)).square().sum()


@pytest.mark.parametrize("loss", [pinball, every_second, masked, written_in_parts, changed_by_a_part])
def test_changes_in_place_of_a_transposed_tensor(loss):
    """The weight's gradient is a sum over them, in the order of their memory."""
    torch.manual_seed(0)
    module = nn.Linear(36, 36)
    scale = module.scale = nn.Parameter(torch.rand(12) + 0.5)

    def scaled(output):
        return loss(output.view(8, 36, 12).transpose(1, 2) / scale[:, None])

    iteration = Iteration(module, (torch.randn(96, 36),), scaled)
    program = trace_real_layouts(iteration)
    assert all(each.numel() == 1 for each in program.constants.values())  # none stands for a block
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(graph))).equal


class Shifted(nn.Embedding):
    """Labels as T5 gives them to its decoder: a number is written into one column."""

    def forward(self, input):
        shifted = input.new_zeros(input.shape)
        shifted[..., 1:] = input[..., :-1].clone()
        shifted[..., 0] = 3
        return super().forward(shifted)


def test_a_change_in_place_of_a_column():
    iteration = Iteration(Shifted(8, 4), (torch.randint(8, (3, 5)),), lambda output: output.square().mean())
    program = trace_real_layouts(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(graph))).equal


def test_a_view_of_one_image_has_the_strides_of_the_kernel():
    torch.manual_seed(0)
    iteration = patches()
    program = trace_real_layouts(iteration)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations))
    assert compare(iteration, PlannedStep(iteration, program, baseline_schedule(graph))).equal
    for output, call in program.views.items():
        tensors = {v: torch.empty_strided(*program.values[v][1:3]) for v in values_read(call)}
        result = call.target(*substitute(call.arguments, tensors), **call.keywords)
        assert result.stride() == program.values[output].strides


def test_a_view_of_what_was_copied_into_a_tensor():
    """Its memory is the copy's: no call makes it."""

    def loss(output):
        made = torch.empty(4, 3)
        made.copy_(output.exp())
        return made.view(-1).exp().sum()

    program = trace_real_layouts(Iteration(nn.Linear(5, 3), (torch.randn(4, 5),), loss))
    assert not [operation for operation in program.operations if "view" in operation.name]
