"""Labels of each batch reach the loss; tensors that nobody hands to an iteration are never frozen unseen."""

from __future__ import annotations

import pytest
import torch
from memplan.graphs.errors import InputError, MismatchError
from memplan.model.file import load_model_file
from memplan.model.iteration import Iteration, Labelled, with_targets
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.eager import run_eager
from memplan.steps.execute import PlannedStep
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.output_layouts import trace_real_layouts
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn
from torch.nn import functional


def planned(iteration):
    program = trace(iteration)
    return PlannedStep(iteration, program, Schedule.of(compute(i) for i in range(len(program.operations))))


def batches(count=3):
    torch.manual_seed(5)
    return [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(count)]


def smoothed(output, targets, smoothing=0.1):
    return functional.cross_entropy(output, targets["labels"], label_smoothing=smoothing) * targets["scale"]


@pytest.mark.parametrize(
    ("loss_fn", "nest"),
    [
        (functional.cross_entropy, lambda labels: labels),
        (nn.CrossEntropyLoss(), lambda labels: labels),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])), lambda labels: labels),
        (smoothed, lambda labels: {"labels": labels, "scale": 2.0}),
        (lambda output, batch: functional.cross_entropy(output, batch[0]), lambda labels: [labels]),
    ],
    ids=["function", "module", "weighted", "nested", "own"],
)
def test_every_batch_is_trained_against_its_own_labels(loss_fn, nest):
    module = nn.Linear(4, 3)
    first, *others = batches()
    step = planned(Iteration(module, with_targets((first[0],), nest(first[1])), loss_fn))
    losses = set()
    for x, labels in (first, *others):
        loss = step(x, targets=nest(labels))
        eager = run_eager(Iteration(module, with_targets((x,), nest(labels)), loss_fn))
        assert torch.equal(loss, not_none(eager.loss))
        assert torch.equal(not_none(module.weight.grad), eager.gradients["weight"])
        module.zero_grad()
        losses.add(loss.item())
    assert len(losses) == 3


def test_a_loss_function_of_two_is_given_the_inputs():
    module = nn.Linear(4, 3)
    first, second = ({"input": x} for x, _labels in batches(2))

    def autoencoding(output, batch):
        return functional.mse_loss(output, batch["input"][:, :3])

    step = planned(Iteration(module, first, autoencoding))
    for batch in (first, second):
        assert torch.equal(step(**batch), not_none(run_eager(Iteration(module, batch, autoencoding)).loss))


def test_targets_may_be_positional_where_inputs_are_named():
    module, (x, labels) = nn.Linear(4, 3), batches(1)[0]
    step = planned(Iteration(module, with_targets({"input": x}, labels), functional.cross_entropy))
    expected = functional.cross_entropy(module(x), labels)
    assert torch.equal(step(input=x, targets=labels), expected)
    with pytest.raises(MismatchError, match="input targets is missing"):
        step(input=x)
    with pytest.raises(MismatchError, match=r"input targets is torch\.int32"):
        step(input=x, targets=labels.int())
    with pytest.raises(MismatchError, match=r"Linear\.forward.*: multiple values for argument 'input'"):
        step(x, input=x, targets=labels)
    with pytest.raises(InputError, match="given twice"):
        with_targets({"targets": labels}, labels)


def test_optimize_takes_targets():
    import memplan

    module, (x, labels) = nn.Linear(4, 3), batches(1)[0]
    step = memplan.optimize(
        module, (x,), targets=labels, loss_fn=functional.cross_entropy, budget="100%", solver="store-all"
    )
    assert torch.equal(step(x, targets=labels), functional.cross_entropy(module(x), labels))


def test_targets_of_another_dtype_get_a_plan():
    """Mixup that begins in a later epoch: classes, then shares of classes."""
    import memplan

    torch.manual_seed(0)
    module, x, classes = nn.Linear(4, 3), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    loss_fn = nn.functional.cross_entropy
    step = memplan.optimize(
        module, x, targets=classes, loss_fn=loss_fn, budget=10_000, solver="store-all", cache=False
    )
    for targets in (classes, torch.rand(6, 3).softmax(-1), classes):
        assert torch.equal(step(x, targets=targets).detach(), loss_fn(module(x), targets))
    assert len(step.plans) == 2


def test_a_model_file_may_return_targets(tmp_path):
    path = tmp_path / "model.py"
    text = "import torch\ndef build():\n    return torch.nn.Linear(4, 3), (torch.ones(2, 4),), {}\n"
    path.write_text(text.format("torch.nn.functional.cross_entropy, torch.tensor([0, 2])"))
    assert "targets" in trace(load_model_file(str(path)).build()).inputs
    larger = load_model_file(str(path)).build(batch=5)
    assert isinstance(larger.inputs, Labelled)
    assert larger.inputs.targets.tolist() == [0, 2, 0, 2, 0]
    path.write_text(text.format("None, torch.tensor([0, 2])"))
    with pytest.raises(InputError, match="no loss_fn to take them"):
        load_model_file(str(path)).build()


# ── tensors from outside ────────────────────────────────────────────────────────────────────────────

LABELS = torch.tensor([0, 1])


class Masked(nn.Linear):
    """A mask in an attribute, one in a list, a class's own; literals of every kind."""

    kinds = torch.tensor([2.0, 1.0])

    def __init__(self):
        super().__init__(3, 2)
        self.mask, self.more = torch.tensor([1.0, 0.5]), {"all": [torch.tensor([0.5, 0.5])]}

    def forward(self, x):
        literal = torch.tensor([1.0, 3.0]) + torch.tensor(3.0) + torch.Tensor([1.0, 2.0])
        made = super().forward(x) * self.mask * self.more["all"][0] * self.kinds * literal
        return made[[0, 1]].sum()


def closure():
    labels = torch.tensor([0, 1])
    return lambda output: functional.cross_entropy(output, labels)


class Criterion:
    """Not a module."""

    def __init__(self):
        self.weight = torch.tensor([1.0, 2.0])

    def __call__(self, output):
        return (output * self.weight).sum()

    def method(self, output):
        return self(output)


@pytest.mark.parametrize(
    "loss_fn", [closure(), lambda output: functional.cross_entropy(output, LABELS)], ids=["closure", "global"]
)
def test_labels_from_outside_are_refused_by_their_line(loss_fn):
    with pytest.raises(
        TraceError, match=r"test_iteration_targets.py:\d+: uses a tensor from outside, int64 \[2\].*targets"
    ):
        trace(Iteration(nn.Linear(3, 2), (torch.ones(2, 3),), loss_fn))


def distilled():
    teacher = nn.Linear(3, 2).requires_grad_(False)
    return lambda output: (output - teacher(torch.ones(2, 3))).square().sum()


class Head(nn.Module):
    """A loss with a weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, output):
        return (output * self.weight).sum()


@pytest.mark.parametrize(
    ("loss_fn", "name"), [(distilled(), r"loss_fn\.teacher"), (Head(), "loss_fn")], ids=["teacher", "head"]
)
def test_a_module_that_the_loss_alone_reaches_is_refused_by_name(loss_fn, name):
    with pytest.raises(TraceError, match=rf"uses {name}, a module that is no part .*above a function of"):
        trace(Iteration(nn.Linear(3, 2), (torch.ones(2, 3),), loss_fn))


def test_a_module_may_hold_tables_and_make_literals():
    iteration = Iteration(Masked(), (torch.randn(2, 3),))
    step = planned(iteration)
    assert compare(iteration, step).equal
    assert {path[-1] for path in step.program.held.values()} == {"mask", 0, "kinds"}
    assert len(step.program.constants) > len(step.program.held)


@pytest.mark.parametrize("loss_fn", [Criterion(), Criterion().method], ids=["object", "method"])
def test_a_loss_object_may_hold_weights(loss_fn):
    iteration = Iteration(nn.Linear(3, 2), (torch.randn(2, 3),), loss_fn)
    assert compare(iteration, planned(iteration)).equal


def replace_mask(module):
    module.mask = torch.tensor([2.0, 0.5])


def change_mask(module):
    module.mask.mul_(2)


def replace_list(module):
    module.more = {"all": [torch.tensor([0.5, 0.5])]}


def drop_mask(module):
    del module.mask


@pytest.mark.parametrize("change", [replace_mask, change_mask, replace_list, drop_mask])
def test_a_table_that_changes_is_noticed(change):
    module, x = Masked(), torch.randn(2, 3)
    step = planned(Iteration(module, (x,)))
    step(x)
    change(module)
    with pytest.raises(
        MismatchError, match=r"module\.m.*(has changed since the plan was made|the plan is for)"
    ):
        step(x)


def test_the_fingerprint_is_the_same_whatever_is_in_a_table():
    one, other = Masked(), Masked()
    other.mask = torch.tensor([7.0, 7.0])
    prints = {trace(Iteration(module, (torch.randn(2, 3),))).fingerprint for module in (one, other)}
    assert len(prints) == 1


def test_state_that_changes_in_place_must_be_a_buffer():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.count = torch.zeros(())

        def forward(self, x):
            self.count.add_(1)
            return super().forward(x).sum() * self.count

    with pytest.raises(
        TraceError, match=r"test_iteration_targets.py:\d+: changes a tensor from outside.*register_buffer"
    ):
        trace(Iteration(Counting(), (torch.ones(2, 3),)))


class Positions(nn.Linear):
    """Reads a part of its table, as VideoMAE does, and may change it."""

    def __init__(self, *, changes):
        super().__init__(3, 2)
        self.table, self.changes = torch.randn(3, 2), changes

    def forward(self, x):
        part = self.table.detach()[1:]
        if self.changes:
            part.add_(1)
        return (super().forward(x) + part).square().mean()


def test_a_view_of_a_table_lies_in_the_table():
    iteration = Iteration(Positions(changes=False), (torch.randn(2, 3),))
    program = trace_real_layouts(iteration)
    assert not [operation for operation in program.operations if "slice" in operation.name]
    assert compare(iteration, planned(iteration)).equal


def test_a_part_of_a_table_that_changes_in_place_must_be_in_a_buffer():
    with pytest.raises(TraceError, match=r"a view of a tensor \[3, 2\] from outside.*register_buffer"):
        trace(Iteration(Positions(changes=True), (torch.randn(2, 3),)))
