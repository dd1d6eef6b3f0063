"""Models that ask for values of their inputs: traced, and each batch is looked at before its plan runs."""

from __future__ import annotations

import pytest
import torch
from iterations import mean_square
from memplan import optimize
from memplan.graphs.errors import MismatchError
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.profiling.compare.comparison import compare
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.steps.execute import PlannedStep
from memplan.steps.inputs import OtherShapeError
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.output_layouts import residents, trace_real_layouts
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Model(nn.Module):
    """A function of a layer and the inputs. flags: a buffer."""

    flags: torch.Tensor

    def __init__(self, run, layer=None):
        super().__init__()
        self.run, self.layer = run, nn.Linear(8, 4) if layer is None else layer
        self.register_buffer("flags", torch.tensor([True, False, True]))

    def forward(self, *inputs):
        return self.run(self, *inputs)


def step_of(run, *inputs, layer=None):
    """A model and a step by the plain schedule, three iterations of which are as those of plain PyTorch."""
    torch.manual_seed(0)
    model = Model(run, layer)
    iteration = Iteration(model, inputs, mean_square)
    program = trace_real_layouts(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    step = PlannedStep(iteration, program, baseline_schedule(graph))
    assert compare(iteration, step).equal
    return model, step


ROWS = torch.arange(12)
EDGES = torch.tensor([[0, 1, 2, 3, 3, 5], [1, 1, 0, 3, 2, 4]])
OTHER_LOOPS = torch.tensor([[0, 1, 2, 3, 3, 5], [0, 2, 0, 1, 2, 4]])
SEQUENCES = torch.randn(4, 6, 8)
LENGTHS = torch.tensor([3, 6, 1, 4])
TARGETS = torch.tensor([[1, 2, 3], [4, 5, 0], [2, 0, 0]])


def picked(model, x, mask):
    return model.layer(x)[mask]


def largest(model, x, ids):
    return model.layer(x) * int(ids.max())


def without_loops(model, x, edges):
    """As graph networks do: self-loops are taken out, and neighbours counted."""
    kept = edges[:, edges[0] != edges[1]]
    nodes = int(edges.max()) + 1
    degree = torch.zeros(nodes).scatter_add(0, kept[1], torch.ones(kept.shape[1]))
    sent = model.layer(x)[kept[0]] / (degree[kept[1]] + 1)[:, None]
    return torch.zeros(nodes, 4).index_add(0, kept[1], sent)


def packed(model, x, lengths):
    bundle = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(model.layer(bundle)[0], batch_first=True)[0]


def aligned(model, x, targets):
    scores, lengths = model.layer(x).log_softmax(-1), (targets > 0).sum(-1)
    return functional.ctc_loss(scores, targets.masked_select(targets > 0), torch.full((3,), 6), lengths)


def listed(model, x, ids):
    return sum(model.layer(x) * number for number in ids.tolist())


def changed_first(model, x, ids):
    """What is asked for follows from a change in place of a part."""
    marks = torch.zeros(12, dtype=torch.bool)
    marks[2:][ids[:4]] = True
    return model.layer(x) * int(marks.sum()) + model.layer(x)[marks].sum()


CASES = {
    "a mask": (picked, torch.randn(12, 8), ROWS % 3 > 0, ROWS % 3 > 0, ROWS % 2 > 0),
    "the largest": (largest, torch.randn(12, 8), ROWS, ROWS.flip(0), ROWS + 1),
    "self-loops": (without_loops, torch.randn(6, 8), EDGES, EDGES.clone(), OTHER_LOOPS),
    "a list": (listed, torch.randn(12, 8), ROWS[:3], ROWS[:3].clone(), ROWS[1:4]),
    "a change": (changed_first, torch.randn(12, 8), ROWS, ROWS + (ROWS > 5), ROWS + 1),
    "lengths": (packed, SEQUENCES, LENGTHS, LENGTHS.flip(0), LENGTHS.clamp(max=5)),
    "labels": (aligned, torch.randn(6, 3, 8), TARGETS, TARGETS * 3 % 7, TARGETS.clamp(max=1).roll(1, 0)),
}


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_batch_with_other_answers_is_not_run(name):
    run, x, first, identical, other = CASES[name]
    layer = nn.LSTM(8, 4, num_layers=2, batch_first=True, bidirectional=True) if run is packed else None
    model, step = step_of(run, x, first, layer=layer or (nn.Linear(8, 7) if run is aligned else None))
    eager = mean_square(model(x, identical))
    assert float(step(x, identical)) == float(eager)
    with pytest.raises(
        OtherShapeError, match=r"test_values_used.py:\d+: uses values that .* input 1; they differ"
    ):
        step(x, other)


def test_a_buffer_that_is_asked_for_is_looked_at():
    def run(model, x):
        return model.layer(x) if model.flags.all() else 2 * model.layer(x)[:, model.flags.nonzero()[:, 0]]

    x = torch.randn(5, 8)
    model, step = step_of(run, x)
    step(x)
    model.flags.logical_not_()
    with pytest.raises(MismatchError, match="the buffer flags"):
        step(x)


def test_a_model_that_changes_what_it_asks_for_is_refused():
    def run(model, x):
        made = model.layer(x) * (1 + int(model.flags.sum()))
        model.flags.logical_not_()
        return made

    with pytest.raises(MismatchError, match="the buffer flags"):
        step_of(run, torch.randn(5, 8))


@pytest.mark.scripts
def test_many_answers_need_equal_inputs():
    _model, step = step_of(
        lambda model, x, ids: sum(model.layer(x) * int(each + 1) for each in ids),
        torch.randn(3, 8),
        torch.arange(200),
    )
    assert len(not_none(step.program.used).texts()) == 1
    step(torch.randn(3, 8), torch.arange(200))
    with pytest.raises(OtherShapeError):
        step(torch.randn(3, 8), torch.arange(200).clamp(max=198))


def test_what_follows_from_weights_decides_nothing():
    def run(model, x, ids):
        return model.layer(x)[(model.layer(x) + ids)[:, 0] > 0]

    with pytest.raises(TraceError, match="decide a shape"):
        trace(Iteration(Model(run), (torch.randn(5, 8), torch.ones(5, 1).long()), mean_square))


@pytest.mark.scripts
def test_a_value_overwritten_by_something_unknown_is_forgotten():
    def run(model, x, ids):
        ids = ids.clone()
        ids[0] = model.layer(x)[0, 0].long()
        return model.layer(x) * int(ids.sum())

    with pytest.raises(TraceError, match="depends on the values"):
        trace(Iteration(Model(run), (torch.randn(5, 8), ROWS), mean_square))


def hidden(model, x, mask):
    """As transformers: eager PyTorch leaves out a mask that hides nothing, which a tracer is not asked."""
    y = model.layer(x)
    if not torch.compiler.is_compiling() and mask.all():
        return y.sum(0)
    return (y * mask[:, None]).flip(0).sum(0)


def test_a_value_by_which_eager_takes_another_path_than_a_tracer():
    """Eager PyTorch's path is planned, for the batches that take it."""
    masks = [torch.arange(12) < 7, torch.ones(12, dtype=torch.bool)]
    model, step = step_of(hidden, torch.randn(12, 8), masks[0])
    assert step.program.used is not None
    assert not step.program.compiling
    x = torch.randn(12, 8)
    assert torch.equal(step(x, torch.arange(12) > 3), mean_square(model(x, torch.arange(12) > 3)))
    with pytest.raises(OtherShapeError, match="follow from the input 1"):
        step(x, masks[1])


def empty(model, x, images):
    """As SmolVLM: images that are zero are left out."""
    kept = (images == 0).sum((1, 2)) != 9
    return model.layer(x) + images[kept].sum()


def test_real_numbers_of_an_input_decide():
    images = torch.randn(4, 3, 3)
    images[2] = 0
    model, step = step_of(empty, torch.randn(5, 8), images)
    x, others = torch.randn(5, 8), images * 2
    assert torch.equal(step(x, others), mean_square(model(x, others)))
    with pytest.raises(OtherShapeError, match="follow from the input 1"):
        step(x, images + 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "run",
    [
        lambda model, x: model.layer(x) * float(x.abs().max()),
        lambda model, x: model.layer(x)[x[:, 0] > 0],
    ],
    ids=["a real number", "more rows than are a decision"],
)
def test_real_numbers_of_an_input_that_are_data(run):
    with pytest.raises(TraceError, match="depends on the values"):
        trace(Iteration(Model(run), (torch.randn(1024, 8),), mean_square))


def test_what_no_value_answers_is_planned_as_under_compile():
    def run(model, x):
        y = model.layer(x)
        if not torch.compiler.is_compiling() and y.sum() > 0:
            return y * 2
        return y

    program = trace(Iteration(Model(run), (torch.randn(5, 8),), mean_square))
    assert program.used is None
    assert program.compiling


def test_distributions_do_not_ask_whether_their_arguments_are_valid(monkeypatch):
    """`torch.compile` switches that off for the whole process."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def run(model, x, actions):
        policy = torch.distributions.Categorical(logits=model.layer(x))
        return policy.log_prob(actions) + policy.entropy()

    _model, step = step_of(run, torch.randn(5, 8), torch.randint(4, (5,)))
    assert step.program.used is None
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))


@pytest.mark.scripts
def test_a_batch_with_other_answers_has_another_plan_made():
    torch.manual_seed(0)
    model, x = Model(picked), torch.randn(12, 8)
    masks = [ROWS % 3 > 0, ROWS % 2 > 0, ROWS % 3 > 0]
    step = optimize(
        model,
        (x, masks[0]),
        loss_fn=mean_square,
        budget="100%",
        time_limit=0.2,
        max_plans=2,
        cache=False,
        verify=False,
    )
    for mask in (*masks, ROWS > 3, *masks):
        assert float(step(x, mask)) == float(mean_square(model(x, mask)))
        assert len(step.plans) <= 2


def test_a_tensor_made_like_another_has_its_strides():
    """Of a transposed tensor it is transposed, so that it can be viewed as one row transposed back."""

    def of_form(model, x):
        return model.layer(x) * int(torch.ones_like(x.t()).t().view(-1).sum())

    step_of(of_form, torch.randn(3, 8))
