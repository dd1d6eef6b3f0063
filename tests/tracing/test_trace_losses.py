"""Every loss of torch.nn is bitwise plain PyTorch's, in value and gradient, on every batch."""

from __future__ import annotations

import pytest
import torch
from memplan.model.iteration import Iteration, with_targets
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare.eager import run_eager
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from not_none import not_none
from torch import nn

CLASSES = 7


def classes(rows):
    return torch.randint(CLASSES, (rows,))


def uniform(rows):
    return torch.rand(rows, CLASSES)


def signs(rows):
    return torch.randint(2, (rows, CLASSES)) * 2.0 - 1


def wide(rows):
    return 5 * torch.randn(rows, CLASSES)


def distributions(rows):
    return torch.rand(rows, CLASSES).softmax(-1)


WEIGHT = torch.rand(CLASSES) + 0.5

LOSSES = {
    "bce_with_logits": (nn.BCEWithLogitsLoss, uniform, {}),
    "bce_with_logits_weight": (nn.BCEWithLogitsLoss, uniform, {"weight": WEIGHT}),
    "bce_with_logits_pos_weight": (nn.BCEWithLogitsLoss, uniform, {"pos_weight": WEIGHT}),
    "cross_entropy": (nn.CrossEntropyLoss, classes, {}),
    "cross_entropy_smooth": (nn.CrossEntropyLoss, classes, {"label_smoothing": 0.1, "weight": WEIGHT}),
    "cross_entropy_soft": (nn.CrossEntropyLoss, distributions, {}),
    "mse": (nn.MSELoss, wide, {}),
    "l1": (nn.L1Loss, wide, {}),
    "smooth_l1": (nn.SmoothL1Loss, wide, {"beta": 0.7}),
    "huber": (nn.HuberLoss, wide, {"delta": 0.7}),
    "soft_margin": (nn.SoftMarginLoss, signs, {}),
    "hinge_embedding": (nn.HingeEmbeddingLoss, signs, {}),
    "multilabel_soft_margin": (nn.MultiLabelSoftMarginLoss, uniform, {}),
    "multi_margin": (nn.MultiMarginLoss, classes, {}),
    "poisson": (nn.PoissonNLLLoss, uniform, {}),
}


class Logits(nn.Linear):
    def __init__(self):
        super().__init__(5, CLASSES)


class Probabilities(Logits):
    def forward(self, x):
        return super().forward(x).sigmoid()


class LogProbabilities(Logits):
    def forward(self, x):
        return super().forward(x).log_softmax(-1)


OF_PROBABILITIES = {
    "bce": (Probabilities, nn.BCELoss, uniform, {"weight": WEIGHT}),
    "nll": (LogProbabilities, nn.NLLLoss, classes, {"weight": WEIGHT}),
    "kl": (LogProbabilities, nn.KLDivLoss, distributions, {}),
}
CASES = {name: (Logits, *case) for name, case in LOSSES.items()} | OF_PROBABILITIES


@pytest.mark.sampled(9)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_bitwise_equal_on_every_batch(name, reduction):
    make, loss, labels, options = CASES[name]
    torch.manual_seed(0)
    module, criterion = make(), loss(reduction=reduction, **options)

    def loss_fn(output, targets):
        return criterion(output, targets).sum()

    step = None
    for _ in range(25):
        iteration = Iteration(
            module,
            with_targets((3 * torch.randn(9, 5),), labels(9)),
            criterion if reduction != "none" else loss_fn,
        )
        if step is None:
            module.criterion = criterion  # a weight that only a closure holds would be refused
            program = trace(iteration)
            order = (compute(index) for index in range(len(program.operations)))
            step = PlannedStep(iteration, program, Schedule.of(order))
        planned, eager = step.run(iteration.inputs), run_eager(iteration)
        assert torch.equal(not_none(planned.loss), not_none(eager.loss))
        assert all(torch.equal(planned.gradients[key], eager.gradients[key]) for key in eager.gradients)


@pytest.mark.parametrize("activation", [nn.SiLU, nn.Mish, nn.GELU, nn.Hardswish, nn.Softplus, nn.LogSigmoid])
def test_operators_with_a_kernel_are_not_taken_apart(activation):
    layers = nn.Sequential(nn.Linear(5, 6), activation(), nn.Linear(6, 2))
    program = trace(Iteration(layers, (torch.randn(3, 5),), torch.sum))
    own = [operation for operation in program.operations if operation.layer == "1"]
    assert [operation.phase.word for operation in own] == ["forward", "backward"]
