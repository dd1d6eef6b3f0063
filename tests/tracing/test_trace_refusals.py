"""A refusal names the line, the library it is in, and the way out where it is known."""

from __future__ import annotations

import importlib
import runpy
from typing import Any

import pytest
import torch
from memplan.graphs.errors import MismatchError
from memplan.model.iteration import Iteration
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.steps.execute import PlannedStep
from memplan.torch_support.hints import hint
from memplan.torch_support.unsupported import TraceError, at_line, is_users
from memplan.tracing.trace import trace
from torch import nn


class Conditional(nn.Linear):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (super().forward(x),))


class PickingRows(nn.Linear):
    def forward(self, x):
        rows = super().forward(x)
        return rows[rows[:, 0] > 0]


class Packed(nn.GRU):
    def forward(self, x):
        lengths = torch.arange(x.shape[0], 0, -1) + self.all_weights[0][3][0].long()
        return super().forward(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0].data


class Aligned(nn.Linear):
    def forward(self, x):
        scores, ones = super().forward(x).log_softmax(-1), torch.ones(2, 1, dtype=torch.int64)
        return nn.functional.ctc_loss(scores, ones, scores[0, :, 0].long() + 1, ones[:, 0])


class Dropping(nn.Linear):
    layerdrop = 0.5

    def forward(self, x):
        chance = torch.rand([])
        return x if self.training and chance < self.layerdrop else super().forward(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [
        (Conditional(3, 3), torch.ones(3, 3), "takes functions .*; use torch.where"),
        (PickingRows(3, 3), torch.ones(3, 3), "decide a shape .*; compute all rows and choose"),
        (Packed(3, 3), torch.ones(2, 2, 3), "; the lengths of a packed sequence must be an input"),
        (Aligned(3, 3), torch.ones(2, 2, 3), "; the lengths of a CTC loss must be inputs"),
        (Dropping(3, 3), torch.ones(3, 3), "; layers are dropped by chance: set layerdrop to 0"),
    ],
    ids=lambda thing: type(thing).__name__ if isinstance(thing, nn.Module) else "",
)
def test_a_refusal_says_what_to_do(module, inputs, words):
    with pytest.raises(TraceError, match=rf"test_trace_refusals.py:\d+: .*{words}") as caught:
        trace(Iteration(module, (inputs,), torch.sum))
    assert "\n" not in str(caught.value)
    assert "memplan" not in str(caught.value).replace("memplan.optimize_module", "")


PICKS = "def run(x):\n    return x[x[:, 0] > 0]"
NUMBER = "def run(x):\n    return x * x.sum().item()"
MASKS = "def mask_along_axis(x):\n    return x * x.sum().item()\ndef run(x):\n    return mask_along_axis(x)"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("file", "source", "advice"),
    [
        ("nflows/transforms/splines/cubic.py", PICKS, "like zuko.flows.NSF"),
        ("nflows/transforms/splines/linear.py", NUMBER, "like zuko.flows.NSF"),
        ("torch_geometric/nn/pool/edge_pool.py", PICKS, "pool by clusters that are known beforehand"),
        ("torch_geometric/utils/dropout.py", PICKS, "drop edges before the step"),
        ("torch_geometric/utils/loop.py", PICKS, "edges must be an input"),
        ("torch_geometric/nn/norm.py", NUMBER, "use torch.where, or put it into an operator"),
        ("kornia/augmentation/color.py", NUMBER, "augment batches before the step"),
        ("pytorch_metric_learning/reducers/threshold.py", PICKS, r"reducer=reducers.MeanReducer\(\)"),
        ("torchaudio/functional/functional.py", MASKS, "iid_masks=True"),
    ],
)
def test_advice_for_code_of_libraries(tmp_path, file, source, advice):
    """The place is the library's line, the advice what its users can do."""
    path = tmp_path / "site-packages" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    module = runpy.run_path(str(path))

    class Calling(nn.Linear):
        def forward(self, x):
            return module["run"](super().forward(x))

    library = file.partition("/")[0]
    line = rf"{path.name}:\d+ of {library}: .*{advice}"
    with pytest.raises(TraceError, match=line):
        trace(Iteration(Calling(3, 3), (torch.ones(3, 3),), torch.sum))


def positive(x):
    if not (x > 0).all():
        raise RuntimeError("input length mismatch")
    return x.clone()


torch.library.define("torchtext::positive", "(Tensor x) -> Tensor")
torch.library.impl("torchtext::positive", "CPU", positive)


class Positive(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.ops.torchtext.positive(x)


def test_an_operator_that_refuses_the_zeros_that_stand_for_its_tensors_is_named():
    """PyTorch runs operators of some libraries on zeros where they have no kernel for fake tensors."""
    line = "the operator torchtext.positive.default has no kernel for fake tensors.*register_fake"
    with pytest.raises(TraceError, match=rf"test_trace_refusals.py:\d+: {line}"):
        trace(Iteration(Positive(3, 3), (torch.ones(3, 3),), torch.sum))


ORIGINS = {
    "weights": (lambda linear, x: x if linear(x).sum() > 0 else -x, "the model's weights.*use torch.where"),
    "numbers": (lambda _linear, x: x[x[:, 0] > 0], "real numbers of the batch.*give the mask or the indices"),
    "chance": (lambda linear, x: linear(x)[torch.rand(600) > 0.5], "random numbers.*draw the mask before"),
    "rows": (lambda linear, x: x[linear(x).nonzero()], "the model's weights.*a fixed number of rows by topk"),
}


class Asking(nn.Linear):
    origin = ""

    def forward(self, x):
        linear = super().forward
        if torch.compiler.is_compiling() and linear(x).sum() > 0:  # another refusal, which would help nobody
            return x
        return ORIGINS[self.origin][0](linear, x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("origin", ORIGINS)
def test_advice_depends_on_what_the_values_follow_from(origin):
    module, words = Asking(3, 3), ORIGINS[origin][1]
    module.origin = origin
    line = rf"test_trace_refusals.py:\d+: its code depends on the values of tensors that follow from {words}"
    with pytest.raises(TraceError, match=f"{line}.*memplan.optimize_module plans the network") as caught:
        trace(Iteration(module, (torch.ones(600, 3),), torch.sum))
    assert "torch.compile" not in str(caught.value)


TABLE = """
import torch
class Solver:
    table = [torch.tensor([0.25, 0.75])]
def run(x):
    return x * Solver.table[0].sum()
def adapted(x):
    return x * Solver.table[0].sum() * x.sum().item()
"""


@pytest.mark.scripts
def test_a_constant_of_a_library_is_no_label(tmp_path, monkeypatch):
    """Its coefficients are the plan's, as long as they are the same; what is refused beyond that is named."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "odesolvers.py").write_text(TABLE)
    monkeypatch.syspath_prepend(str(folder))
    library = importlib.import_module("odesolvers")

    class Solved(nn.Linear):
        solve: Any

        def forward(self, x):
            return self.solve(super().forward(x))

    module, x = Solved(3, 3), torch.ones(3, 3)
    module.solve = library.adapted
    with pytest.raises(
        TraceError, match=r"odesolvers.py:\d+ of odesolvers: .*follow from the model's weights"
    ):
        trace(Iteration(module, (x,), torch.sum))
    module.solve = library.run
    iteration = Iteration(module, (x,), torch.sum)
    program = trace(iteration)
    step = PlannedStep(iteration, program, Schedule.of(map(compute, range(len(program.operations)))))
    assert torch.equal(step(x), module(x).sum())
    library.Solver.table[0].mul_(2.0)
    with pytest.raises(MismatchError, match=r"Solver\.table\.0 has changed"):
        step(x)


def test_a_line_of_a_library_is_named_with_it():
    assert (
        at_line("/venv/lib/python3.11/site-packages/transformers/models/moe.py", 379)
        == "moe.py:379 of transformers: "
    )
    assert at_line("/home/me/model.py", 12) == "model.py:12: "
    assert not is_users(pytest.__file__.replace("pytest/__init__.py", "torch/nn/modules/module.py"))
    assert is_users(pytest.__file__)


def test_a_fault_of_the_fake_kernel_of_experts_has_a_way_out():
    assert "batched_mm" in hint([], "Expected mat_a to be BFloat16 in _grouped_mm")[0]
    assert "nested" in hint([], "AssertionError: self.shape_env must not be None")[0]
    assert "observers" in hint([], "output with shape [1] doesn't match the broadcast shape [8]")[0]
    assert hint([], "something else") == ("", "")
