"""A traced program says what eager does: which calls, which memory, which random numbers, which results."""

import operator
from functools import cache

import pytest
import torch
from iterations import ITERATIONS, Branching, gpt2, seeded
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Kind, Phase
from memplan.model.iteration import Iteration, tensors_in, with_tensors
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare.comparison import compare
from memplan.program.fingerprint import fingerprint
from memplan.program.program import refs, values_read
from memplan.steps.execute import PlannedStep
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.functional import functional_graph
from memplan.tracing.trace import trace
from not_none import not_none
from program_replay import ProgramReplay
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode


def by_name(program):
    return {operation.name: operation for operation in program.operations}


@cache
def program_of(name):
    return trace(seeded(name))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ITERATIONS)
def test_every_program_is_well_formed(name):
    """Names are unique; a storage is resident or written once, before it is read; views stay in theirs."""
    program = program_of(name)
    for things in (program.operations, program.storages):
        names = [thing.name for thing in things]
        assert len(set(names)) == len(names)
    there = {i for i, storage in enumerate(program.storages) if storage.kind <= Kind.OPTIMIZER_STATE}
    for operation in program.operations:
        assert there.issuperset(operation.reads)
        assert there.isdisjoint(operation.writes)
        assert there.issuperset(operation.mutates)
        changed = {program.storages[storage].kind for storage in operation.mutates}
        assert (operation.phase == Phase.UPDATE) == bool(changed & {Kind.BUFFER, Kind.PARAMETER})
        assert operation.phase == Phase.UPDATE or changed <= {Kind.GRADIENT, Kind.PARAMETER_GRADIENT}
        there.update(operation.writes)
    assert there == set(range(len(program.storages)))
    for value, call in program.views.items():
        assert {program.values[read].storage for read in values_read(call)} == {program.values[value].storage}
    losses = [operation for operation in program.operations if operation.phase == Phase.LOSS]
    assert [program.values[not_none(program.loss)].storage in operation.writes for operation in losses] == [
        True
    ]
    phases = [operation.phase for operation in program.operations]
    assert phases == sorted(phases)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["perceptron", "in_place", "transformer", "llama", "t5", "unet"])
def test_storages_are_what_the_kernels_really_allocate(name):
    """The oracle: the program run call by call on real tensors, none of them freed."""
    program = program_of(name)
    replay = ProgramReplay(program, seeded(name)).run()
    owner = {}
    for value, tensor in replay.tensors.items():
        form = program.values[value]
        strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
        expected = [stride for size, stride in zip(form.shape, form.strides, strict=True) if size > 1]
        assert (tuple(tensor.shape), strides, tensor.dtype) == (form.shape, expected, form.dtype)
        storage = tensor.untyped_storage()
        assert owner.setdefault(form.storage, storage.data_ptr()) == storage.data_ptr()
        assert storage.nbytes() == program.storages[form.storage].bytes


def test_names_and_layers():
    operations = by_name(trace(seeded("perceptron")))
    assert operations["0/addmm"].layer == "0"
    assert operations["2/dropout_mask"].random
    assert operations["mean"].phase == Phase.LOSS
    assert operations["1/backward/gelu_backward"].layer == "1"
    assert operations["0/backward/mm"].phase == Phase.BACKWARD


def test_backward_operations_belong_to_the_module_of_their_forward():
    program = trace(gpt2())
    layers = {operation.layer for operation in program.operations if operation.phase == Phase.BACKWARD}
    for part in ("transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj", "lm_head", "transformer.wte"):
        assert part in layers


def test_tied_weights_have_one_gradient_and_frozen_ones_none():
    assert set(trace(seeded("tied")).gradients) == {"table.weight"}
    assert set(trace(seeded("frozen")).gradients) == {"first.weight", "first.bias"}


def test_buffers_change_at_the_end_only():
    program = trace(seeded("in_place"))
    changed = {
        program.storages[storage].name
        for operation in program.operations
        if operation.phase == Phase.UPDATE
        for storage in operation.mutates
    }
    assert changed == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "count",
        "average",
    }


@pytest.mark.scripts
def test_random_numbers_that_nobody_uses_are_drawn():
    operations = by_name(trace(seeded("random_numbers")))
    assert operations["rand"].random
    assert not any(operations["rand"].writes[0] in operation.reads for operation in operations.values())


@pytest.mark.scripts
def test_dropout_in_eval_mode_is_not_random():
    iteration = seeded("transformer")
    assert any(operation.random for operation in trace(iteration).operations)
    iteration.module.eval()
    assert not any(operation.random for operation in trace(iteration).operations)


def test_attention_without_dropout_is_not_random():
    class Attention(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x).square().mean()

    x = nn.Parameter(torch.randn(1, 2, 8, 16))
    module = nn.Sequential(nn.Flatten(0, 0), Attention())
    module.register_parameter("x", x)
    iteration = Iteration(nn.Sequential(nn.Linear(16, 16), Attention()), (torch.randn(1, 2, 8, 16),))
    operations = trace(iteration).operations
    assert any("dot_product" in operation.name for operation in operations)
    assert not any(operation.random for operation in operations)


def test_what_nobody_needs_is_left_out():
    """The logits' softmax, the unused parameters: only what the loss needs is there."""

    class Chatty(nn.Linear):
        def forward(self, x):
            hidden = super().forward(x)
            return {"loss": hidden.sum(), "probabilities": hidden.softmax(-1)}

    program = trace(Iteration(Chatty(3, 3), (torch.ones(2, 3),)))
    assert not any("softmax" in operation.name for operation in program.operations)


def test_a_branch_on_values_that_follow_from_shapes_is_taken_as_eager_takes_it():
    program = trace(seeded("branching"))
    assert not program.compiling
    assert any("mul" in operation.name for operation in program.operations)


def test_the_truth_of_what_has_no_length() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing, self.number, self.names, self.linear = None, 3, ["a"], nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wanted = not bool(self.nothing) and bool(self.number) and bool(self.names) and not False
            return self.linear(x).sum() if wanted else x.sum()

    program = trace(Iteration(Branches(), (torch.ones(2, 2),)))
    assert "addmm" in " ".join(operation.name for operation in program.operations)


@pytest.mark.scripts
def test_known_values_forget_what_is_overwritten():
    class Overwritten(Branching):
        def forward(self, x):
            flags = torch.zeros(4)
            flags[:2] = self.linear(x)[0, :2].detach()
            return self.linear(x).sum() if flags.sum() == 0 else self.linear(x).mean()

    with pytest.raises(TraceError, match="depends on the values of tensors"):
        trace(Iteration(Overwritten(), (torch.ones(2, 3),)))


def test_a_loss_function_that_holds_an_input_means_the_input():
    x = torch.randn(2, 3)
    iteration = Iteration(nn.Linear(3, 2), (x,), lambda output: nn.functional.mse_loss(output, x[:, :2]))
    assert not trace(iteration).constants


# ── fingerprints ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scripts
def test_weights_and_inputs_do_not_count_but_everything_else_does():
    def found(width=8, batch=6, train=True, dropout=0.3, name="0"):
        torch.manual_seed(batch + width)
        layers = {name: nn.Linear(8, width), "1": nn.Dropout(dropout), "2": nn.Linear(width, 4)}
        module = nn.Sequential()
        for key, layer in layers.items():
            module.add_module(key, layer)
        return trace(Iteration(module.train(train), (torch.randn(batch, 8),), torch.sum)).fingerprint

    same = found()
    torch.manual_seed(99)
    assert same == found()
    others = [found(width=9), found(batch=7), found(train=False), found(dropout=0.4), found(name="first")]
    assert len({same, *others}) == 6


def test_the_fingerprint_is_that_of_the_program():
    program = trace(seeded("perceptron"))
    assert program.fingerprint == fingerprint(program)
    assert program.fingerprint.startswith("sha256:")


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────


class Asking(nn.Linear):
    def forward(self, x):
        hidden = super().forward(x).sum()
        return hidden * 2 if hidden.item() > 0 else hidden


class SavedInHalf(nn.Linear):
    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float):
            return super().forward(x).tanh().sum()


class Outside(nn.Linear):
    weight_of_another = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (super().forward(x) * Outside.weight_of_another).sum()


class Growing(nn.Linear):
    """Makes a table at the first size that it meets, as ConViT does."""

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("grid", torch.zeros(1))

    def forward(self, x):
        if len(self.grid) != len(x):
            self.grid = torch.arange(len(x), dtype=x.dtype)
        return (super().forward(x) + self.grid[:, None]).sum()


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)

    def forward(self, x):
        return self.table(x.long()).sum()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (
            Asking(3, 3),
            TraceError,
            r"test_trace.py:\d+: its code depends on the values of tensors.*torch.where",
        ),
        (SavedInHalf(3, 3), TraceError, "recomputes activations its own way"),
        (Outside(3, 3), TraceError, "needs a gradient and is no parameter of the module"),
        (Sparse(), InputError, "sparse=False"),
        (Growing(), TraceError, r"the buffer grid the shape \[2\], before it has \[1\]: run the model once"),
        (nn.Linear(3, 3), InputError, r"a tensor of shape \(2, 3\) without a loss: pass a loss_fn"),
        (nn.Linear(4, 4), TraceError, "RuntimeError: .*reduction dim"),
    ],
    ids=lambda thing: type(thing).__name__ if isinstance(thing, nn.Module) else "",
)
def test_what_cannot_be_traced_is_refused_in_one_line(module, error, message):
    inputs = (torch.ones(2, 3),)
    with pytest.raises(error, match=message) as caught:
        trace(Iteration(module, inputs))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda output: output, r"the loss has the shape \(2, 3\): it must be one number"),
        (lambda output: 3.0, "the loss is an object of type float, not a tensor"),
        (lambda output: output.detach().sum(), "depends on no parameter"),
        (lambda output: None, "the loss is None, not a tensor"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss_fn, message):
    with pytest.raises(InputError, match=message):
        trace(Iteration(nn.Linear(3, 3), (torch.ones(2, 3),), loss_fn))


def test_tracing_leaves_no_trace():
    iteration = seeded("in_place")
    before = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    state = torch.get_rng_state()
    trace(iteration)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in iteration.module.state_dict().items())
    assert all(parameter.grad is None for parameter in iteration.module.parameters())
    assert not torch.compiler.is_compiling()


def test_what_a_module_keeps_while_traced_is_forgotten():
    class Caching(nn.Linear):
        mask = None
        table: torch.Tensor

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.ones(x.shape)
                self.register_buffer("table", torch.ones(3), persistent=False)
            return (super().forward(x * self.mask) * self.table).sum()

    iteration = Iteration(Caching(3, 3), (torch.ones(2, 3),))
    program = trace(iteration)
    assert iteration.module.mask is None
    assert not hasattr(iteration.module, "table")
    assert trace(iteration).fingerprint == program.fingerprint
    step = PlannedStep(iteration, program, Schedule.of(compute(i) for i in range(len(program.operations))))
    assert compare(iteration, step).equal


def test_a_loss_that_is_a_parameter_is_copied():
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def forward(self):
            return self.weight

    program = trace(Iteration(Only(), ()))
    assert [operation.phase for operation in program.operations] == [Phase.LOSS, Phase.BACKWARD]
    assert program.values[not_none(program.loss)].storage in program.operations[0].writes


def test_cudnn_batch_norm_gives_its_statistics_as_results():
    """The kernel is not there without CUDA, but how it is traced can be seen: on fake tensors."""
    graph = fx.Graph()
    x, weight, mean, variance = (graph.placeholder(name) for name in ("x", "weight", "mean", "variance"))
    norm = torch.ops.aten.cudnn_batch_norm.default
    made = graph.call_function(norm, (x, weight, weight, mean, variance, True, 0.1, 1e-5))
    graph.output([graph.call_function(operator.getitem, (made, 0))])
    with FakeTensorMode():
        examples = [torch.ones(2, 3, 4, 4), *(torch.ones(3) for _ in range(3))]
        traced = functional_graph(fx.GraphModule(nn.Module(), graph), examples, examples, torch.clone)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets[0] is torch.ops.memplan.cudnn_batch_norm.default
    assert targets.count(torch.ops.aten.copy_.default) == 2
    assert norm not in targets


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────


def test_tensors_in_nested_inputs_have_the_name_of_their_place():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    inputs = {"past": [(one, two), (three, None)], "scale": 2.0}
    assert list(tensors_in(inputs)) == ["past.0.0", "past.0.1", "past.1.0"]
    doubled = with_tensors(inputs, {name: 2 * tensor for name, tensor in tensors_in(inputs).items()})
    assert doubled["past"][1][1] is None
    assert doubled["scale"] == 2.0
    assert isinstance(doubled["past"][0], tuple)
    assert torch.equal(doubled["past"][1][0], 2 * three)


def test_references_are_found_in_nested_arguments():
    program = trace(seeded("shared_gradients"))
    cat = by_name(program)["cat"]
    assert len(list(refs(cat.call.arguments))) == 3
    assert list(refs(cat.call.arguments)) == list(values_read(cat.call))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_cudnn_are_refused(kind, monkeypatch):
    module, x = kind(4, 4), torch.randn(2, 3, 4)
    iteration = Iteration(module, (x,), lambda output: output[0].sum())
    trace(iteration)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda _tensor: True)
    with pytest.raises(TraceError, match=r"recurrent layers .*: set torch.backends.cudnn.enabled = False"):
        trace(iteration)
