"""Profiling measures what the operations take, without the memory of the iteration and without a trace of
itself: no number drawn, no buffer changed."""

from collections import Counter

import pytest
import torch
from iterations import example, seeded
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.device import Timed
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.measuring.measure import Measurement
from memplan.devices.measuring.synthetic_inputs import (
    POOL_ELEMENTS,
    SyntheticInputs,
    elements_spanned,
    signature,
    substitute,
)
from memplan.model.iteration import Iteration, call, loss_of
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile import rounds
from memplan.profiling.profile.profile import graph_from, measure_program, quality
from memplan.program.program import Call, Ref, values_read
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn


@pytest.fixture
def instant(monkeypatch):
    """Measure by one run that nobody times. Counts the calls."""
    runs = Counter()

    def first_run(call, _device="cpu", *, ran=False):
        runs["measured"] += 1
        call()
        return 0, ()

    monkeypatch.setattr(rounds, "first_run", first_run)
    monkeypatch.setattr(Cpu, "timed", lambda _self, _calls: Timed(1.0))
    return runs


class Buckets(nn.Module):
    """Floats that become indices: wrong ones would be out of range. No parameter stands before them."""

    edges: torch.Tensor

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 8)
        self.register_buffer("edges", torch.tensor([5.0, 50.0, 500.0]))

    def forward(self, distances, tokens):
        buckets = ((distances.float() + 1).log() / 2).clamp(0, 3).long()
        rows = torch.bucketize(distances.float(), self.edges)
        return (self.table(buckets) + self.table(rows) + self.table(tokens)).square().mean()


class Kitchen(nn.Module):
    """Buffers that change, indices that depend on parameters, dropout, parts of one tensor."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.out = nn.Linear(36, 5)

    def forward(self, x):
        x, indices = self.pool(self.norm(self.convolution(x)).relu())
        x = nn.functional.max_unpool2d(x, indices, [2, 2])
        x = nn.functional.dropout(x[:, :, ::2, ::2].flatten(1), 0.3)
        halves = self.out(x).softmax(-1).split(2, 1)
        return halves[0].sum() + x.gather(1, halves[1].argmax(1, keepdim=True)).mean()


def buckets():
    return Iteration(Buckets(), (torch.tensor([0, 7, 90, 2000]), torch.tensor([3, 2, 1, 0])))


def kitchen():
    return Iteration(Kitchen(), (torch.randn(3, 2, 8, 8),))


def execute(program, residents):
    """Every value of the program, by running it from its residents: the slow, plain way."""
    values = dict(residents)

    def get(value):
        if value not in values:
            run(program.views[value])
        return values[value]

    def run(one):
        known = {value: get(value) for value in values_read(one)}
        result = one.target(*substitute(one.arguments, known), **substitute(one.keywords, known))
        results = result if one.several else (result,)
        values.update({v: r for v, r in zip(one.outputs, results, strict=True) if v is not None})

    with torch.no_grad():
        for operation in program.operations:
            if not operation.mutates:
                run(operation.call)
        for value in program.views:
            get(value)
    return values


# ── stand-ins ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "build",
    [buckets, kitchen, lambda: seeded("bert"), lambda: seeded("t5")],
    ids=["buckets", "kitchen", "bert", "t5"],
)
def test_arguments_have_the_layouts_and_integers_the_values_of_training(build):
    """Each argument against a plain execution of the program; integers that a parameter decides excepted."""
    iteration = build()
    program = trace(iteration)
    known = residents(program, iteration)
    parameters = dict(iteration.module.named_parameters())
    truth = execute(program, known | {v: parameters[name].data for name, v in program.parameters.items()})
    stand_ins = SyntheticInputs(program, known)
    compared = 0
    for operation in program.operations:
        for bound in stand_ins.calls()[:2]:
            for argument, given in zip(operation.call.arguments, bound.args, strict=True):
                if not isinstance(argument, Ref):
                    continue
                true = truth[argument.value]
                assert (given.shape, given.stride(), given.dtype) == (true.shape, true.stride(), true.dtype)
                storage = program.values[argument.value].storage
                if not given.is_floating_point() and storage in stand_ins.exact:
                    assert torch.equal(given, true)
                    compared += 1
        stand_ins.advance()
    assert compared > 0 or isinstance(iteration.module, Kitchen)


@pytest.mark.parametrize("build", [buckets, kitchen])
def test_nothing_of_the_model_changes(build):
    iteration = build()
    program = trace(iteration)
    before = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    state = torch.get_rng_state()
    measure_program(program, residents(program, iteration))
    assert torch.equal(torch.get_rng_state(), state)
    after = iteration.module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in iteration.module.parameters())


def test_only_what_is_needed_later_is_kept():
    iteration = kitchen()
    program = trace(iteration)
    stand_ins = SyntheticInputs(program, residents(program, iteration))
    kept = []
    for _operation in program.operations:
        stand_ins.advance()
        kept.append(set(stand_ins._true))
    storages = program.storages
    made = {storages[s].name for step in kept for s in step} - {storages[s].name for s in kept[0]}
    assert made, "the pooling's indices and the dropout's mask"
    assert not kept[-1] & {s for step in kept for s in step if storages[s].name in made}


def test_a_call_on_a_copy_touches_no_other_copy():
    """A call that changes a resident in place works on a copy of its own, the first one too."""
    iteration = kitchen()
    program = trace(iteration)
    known = residents(program, iteration)
    stand_ins = SyntheticInputs(program, known)
    before = {value: tensor.clone() for value, tensor in known.items()}
    changes = 0
    with torch.no_grad():
        for operation in program.operations:
            if operation.mutates:
                changes += 1
                for bound in stand_ins.calls():
                    bound()
            stand_ins.advance()
    assert changes == 3  # mean, variance, and the count of batches
    assert all(torch.equal(known[value], tensor) for value, tensor in before.items())


@pytest.mark.parametrize(
    ("tensor", "elements"),
    [
        (torch.empty(3, 4), 12),
        (torch.empty(3, 4).t(), 12),
        (torch.empty(4).expand(3, 4), 4),
        (torch.empty(10)[::3], 10),
        (torch.empty(0, 4), 0),
        (torch.empty(()), 1),
    ],
)
def test_elements_spanned(tensor, elements):
    value = trace(Iteration(nn.Linear(1, 1), (torch.ones(1, 1),), torch.sum)).values[0]
    strides = tuple(tensor.stride())
    assert elements_spanned(value._replace(shape=tuple(tensor.shape), strides=strides)) == elements


# ── signatures and figures ──────────────────────────────────────────────────────────────────────────


def test_signatures_tell_what_costs_differently():
    iteration = Iteration(
        nn.Bilinear(4, 4, 1), (torch.ones(4, 4), torch.ones(4, 4).t()), lambda output: output.sum()
    )
    program = trace(iteration)
    one, two = program.inputs.values()
    add, mul = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor

    def key(target, *arguments, **keywords):
        return signature(program, Call(target, arguments, keywords, (0,), False))

    assert key(add, Ref(one), Ref(one)) == key(add, Ref(one), Ref(one))
    different = [
        key(add, Ref(one), Ref(one)),
        key(add, Ref(one), Ref(two)),
        key(add, Ref(two), Ref(two)),
        key(mul, Ref(one), Ref(one)),
        key(add, Ref(one), 1),
        key(add, Ref(one), 1.0),
        key(add, Ref(one), Ref(one), alpha=2),
        key(add, [Ref(one), Ref(one)]),
    ]
    assert len(set(different)) == len(different)


def test_each_signature_is_measured_once(instant):
    iteration = example("mlp")
    program = trace(iteration)
    seen = []
    measured = measure_program(program, residents(program, iteration), lambda *step: seen.append(step))
    signatures = {signature(program, operation.call) for operation in program.operations}
    assert instant["measured"] == len(signatures) < len(program.operations) / 4
    assert len(measured) == len(program.operations)
    total = len(program.operations)
    counted = [step for step in seen if step[1]]  # rounds after the first have no count
    assert [(done, of) for done, of, _name in counted] == [(i + 1, total) for i in range(total)]
    assert [name for _done, _of, name in counted] == [operation.name for operation in program.operations]


@pytest.mark.scripts
def test_profiling_takes_a_fraction_of_the_memory_of_training(instant):
    """Inputs of one operation, as many copies as fill the cache, its outputs: nothing of the iteration."""
    iteration = example("gpt2")
    program = trace(iteration)
    known = residents(program, iteration)

    def train():
        iteration.module.zero_grad()
        loss_of(call(iteration.module, iteration.inputs), iteration.loss_fn).backward()

    training = live_peak(train).peak_bytes
    profiling = live_peak(lambda: measure_program(program, known)).peak_bytes
    assert instant["measured"] > 50
    assert training > 350 * 2**20
    assert profiling < training / 4


def test_the_quality_of_the_times():
    fast, slow = Measurement(1.0, 0.4, 0, doubt=0.2), Measurement(3.0, 0.2, 0)
    figures = quality([fast, slow, slow, fast])
    assert figures == {"signatures": 2, "spread": 0.3, "spread_by_time": 0.25, "off": 0.05}


@torch.library.custom_op("memplan_test::wasteful", mutates_args=())
def wasteful(x: torch.Tensor) -> torch.Tensor:
    torch.empty(3 * x.numel())
    return x * 1


wasteful.register_fake(torch.empty_like)
wasteful.register_autograd(lambda _context, gradient: gradient.clone())


def test_workspace_is_what_an_operation_takes_beside_inputs_and_outputs():
    class Wasteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000))

        def forward(self):
            return wasteful(self.weight).sum()

    program = trace(Iteration(Wasteful(), ()))
    graph = graph_from(program, measure_program(program, {}))
    names = [operation.call.target.__name__ for operation in program.operations]
    workspaces = dict(zip(names, graph.operations.workspace.tolist(), strict=True))
    assert workspaces["wasteful.default"] == 3 * 4000 - 4000
    assert workspaces["sum.default"] == 0


def test_a_storage_larger_than_its_tensor_counts_whole():
    """mse_loss returns one number in a storage of its input's size."""
    iteration = Iteration(
        nn.Linear(10, 100), (torch.ones(50, 10),), lambda y: nn.functional.mse_loss(y, y.detach())
    )
    program = trace(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    assert program.storages[program.values[not_none(program.loss)].storage].bytes == 4
    assert graph.tensor(graph.tensor_index["loss"]).bytes == 4 * 50 * 100


def test_a_stand_in_lies_in_memory_of_its_own_size():
    """Some kernels copy all of the memory that a tensor lies in."""
    iteration = Iteration(nn.Linear(300, 400), (torch.ones(2, 300),), lambda y: y.sum())
    call = SyntheticInputs(trace(iteration), {}).call()
    tensors = [leaf for leaf in call.args if isinstance(leaf, torch.Tensor)]
    assert {(300, 400), (2, 300), (400,)} == {tuple(tensor.shape) for tensor in tensors}
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("extent", [0, 5, POOL_ELEMENTS, POOL_ELEMENTS + 3, 3 * POOL_ELEMENTS])
def test_a_longer_input_repeats_the_random_numbers_of_a_shorter_one(extent):
    program = trace(Iteration(nn.Linear(2, 2), (torch.ones(2, 2),), lambda y: y.sum()))
    form = program.values[0]._replace(shape=(extent,), strides=(1,), dtype=torch.float32)
    made = SyntheticInputs(program, {})._stand_in(form)
    pool = torch.rand(POOL_ELEMENTS, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made, pool.repeat(4)[:extent])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "build", [buckets, kitchen, lambda: example("transformer")], ids=["buckets", "kitchen", "transformer"]
)
def test_the_plain_peak_is_predicted_to_the_byte(build):
    iteration = build()
    program = trace(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    schedule = baseline_schedule(graph)
    step = PlannedStep(iteration, program, schedule)
    resident = int(graph.tensors.bytes[graph.resident].sum())
    measured = live_peak(lambda: step.run(iteration.inputs)).peak_bytes + resident
    assert measured == simulate(graph, schedule).figures.peak
