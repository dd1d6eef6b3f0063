"""The choice of an optimizer: in words and documents, in fingerprints and estimates, and what is refused."""

from dataclasses import replace

import pytest
import torch
from iterations import seeded
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Phase
from memplan.graphs.machine import Updates as Speeds
from memplan.graphs.machines.gpus import find_gpu
from memplan.model.iteration import Iteration, Updates
from memplan.profiling.profile.efficiency import efficiencies
from memplan.profiling.profile.estimate import estimate_program
from memplan.profiling.profile.roofline import Work, seconds
from memplan.tracing.trace import trace
from memplan.updates.catalogue import OPTIMIZERS, titles
from memplan.updates.choice import OptimizerChoice, choice_of, updated
from memplan.updates.early import updates_early
from not_none import not_none
from torch import nn


def test_a_fingerprint_covers_the_optimizer_but_not_its_rate():
    def fingerprint(**changes):
        return trace(updated(seeded("perceptron"), OptimizerChoice("adamw", **changes))).fingerprint

    baseline = trace(seeded("perceptron")).fingerprint
    known = [
        baseline,
        fingerprint(),
        fingerprint(weight_decay=0.0),
        fingerprint(betas=(0.9, 0.95)),
        trace(updated(seeded("perceptron"), OptimizerChoice("sgd"))).fingerprint,
        trace(updated(seeded("perceptron"), OptimizerChoice("sgd", momentum=0.9))).fingerprint,
        fingerprint(amsgrad=True),
        fingerprint(fused=False),
        trace(updated(seeded("perceptron"), OptimizerChoice("adam"))).fingerprint,
        trace(updated(seeded("perceptron"), OptimizerChoice("lion"))).fingerprint,
    ]
    assert len(set(known)) == len(known)
    assert fingerprint(lr=0.5) == fingerprint() == fingerprint(weight_decay=0.01)
    assert fingerprint(update="after") == fingerprint()  # the same operations: their order is the schedule's


def test_estimated_updates_take_the_machines_speed():
    """One matrix of 4 MB, AdamW in 20 passes at 2 GB/s here, 1 GB/s there; fused in 7, or at its own."""
    iteration = Iteration(nn.Linear(1000, 1000, bias=False), (torch.ones(1, 1000),), torch.sum)
    gpu = find_gpu("rtx3060")

    def update(choice, speeds):
        program = trace(updated(iteration, choice))
        costs = estimate_program(program, gpu, updates=speeds)
        (cost,) = (c for o, c in zip(program.operations, costs, strict=True) if o.phase == Phase.UPDATE)
        return cost

    adamw = update(OptimizerChoice("adamw", fused=False), Speeds(2e9, 1e9, 7e9, 7e9))
    assert adamw[:4] == pytest.approx((4e6 / 2e9 + efficiencies().kernel, 4_000_000, 4e6 / 1e9, 4_000_000))
    fused = update(OptimizerChoice("adamw"), Speeds(2e9, 1e9))
    assert fused[:4] == pytest.approx((7 / 20 * 4e6 / 2e9 + efficiencies().kernel, 0, 7 / 20 * 4e6 / 1e9, 0))
    fused = update(OptimizerChoice("adam"), Speeds(2e9, 1e9, 8e9, 5e9))
    assert fused[:4] == pytest.approx((4e6 / 8e9 + efficiencies().kernel, 0, 4e6 / 5e9, 0))
    sgd = update(OptimizerChoice("sgd"), Speeds(2e9, None))
    assert sgd[:3] == (pytest.approx(3 / 20 * 4e6 / 2e9 + efficiencies().kernel), 0, None)
    passed = Work(0, 7 * 4_000_000, "")
    assert update(OptimizerChoice("adamw"), None).seconds == pytest.approx(
        seconds(passed, find_gpu("rtx3060"))
    )


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda p: torch.optim.Adamax(p),
            f"Adamax can't be planned: use {titles()}",
        ),
        (lambda p: torch.optim.AdamW(p, capturable=True), "AdamW with capturable=True can't be planned"),
    ],
    ids=["adamax", "capturable"],
)
def test_other_optimizers_are_refused(make, line):
    iteration = seeded("perceptron")
    with pytest.raises(InputError, match=line):
        trace(iteration._replace(updates=Updates(make(iteration.module.parameters()))))


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        (
            OptimizerChoice("ranger"),
            f"unknown optimizer 'ranger': known are {', '.join(OPTIMIZERS)}",
        ),
        (OptimizerChoice("adamw", momentum=0.9), "adamw has no momentum"),
        (OptimizerChoice("sgd", eps=1e-8), "sgd has no eps"),
        (OptimizerChoice("adam", nesterov=True), "adam has no nesterov"),
        (OptimizerChoice("lion", eps=1e-8), "lion has no eps"),
        (OptimizerChoice("lion", betas=(0.9, 1.5)), "lion: .*not all are in range"),
        (OptimizerChoice("sgd", lr=-1.0), "sgd: Invalid learning rate"),
        (OptimizerChoice("adamw", lr=float("inf")), "adamw: a number is not finite"),
        (OptimizerChoice("adamw", betas=(0.9, 1.5)), "adamw: Invalid beta"),
    ],
    ids=lambda value: value.name if isinstance(value, OptimizerChoice) else "",
)
def test_choices_that_no_optimizer_takes(choice, line):
    with pytest.raises(InputError, match=line) as refused:
        updated(seeded("perceptron"), choice)
    assert "\n" not in str(refused.value)


def test_a_choice_survives_its_document():
    choice = OptimizerChoice("adam", "after", lr=0.1, betas=(0.8, 0.9), amsgrad=True)
    assert choice_of({**choice.document(), "betas": [0.8, 0.9]}) == choice
    assert not choice_of({"name": "adam", "update": "after"}).fused  # as it was before there was a choice


class Twisted(nn.Module):
    """Weights that fused kernels would take for others: of complex numbers, or with gaps in their memory."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x * self.weight).abs().square().sum()


@pytest.mark.parametrize(
    "weight", [torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 8)[:, ::2]], ids=["complex", "gaps"]
)
def test_weights_that_fused_kernels_do_not_take_are_updated_without(weight):
    iteration = Iteration(Twisted(weight), (torch.randn(3, 4),))
    assert (
        not_none(updated(iteration, OptimizerChoice("adamw")).updates).optimizer.param_groups[0]["foreach"]
        is False
    )
    turned = Iteration(Twisted(torch.randn(4, 3).t()), (torch.randn(3, 4),))
    assert (
        not_none(updated(turned, OptimizerChoice("adamw")).updates).optimizer.param_groups[0]["fused"] is True
    )


def test_a_choice_of_early_updates():
    choice = OptimizerChoice("adamw", clip_norm=1.0, early_updates=True)
    assert choice_of(choice.document()) == choice
    assert "early_updates" not in OptimizerChoice("adamw").document()  # as graphs were before there were any
    assert updates_early(trace(updated(seeded("perceptron"), choice)))
    for wrong, line in (
        ({"clip_norm": None}, "goes with --clip-norm"),
        ({"update": "after"}, "leave one out"),
    ):
        with pytest.raises(InputError, match=f"^--early-updates .*{line}"):
            replace(choice, **wrong)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"name": "adamw", "update": "after", "rate": 1}, "unknown field 'rate'"),
        ({"name": "os.system", "update": "after"}, "no optimizer 'os.system'"),
        ({"name": "sgd", "update": "now"}, "that updates 'now'"),
        ({"name": "sgd", "update": "after", "lr": "fast"}, "could not convert"),
        ({"name": "adamw", "update": "after", "betas": [1]}, "source.optimizer"),
        (["adamw"], "source.optimizer"),
    ],
)
def test_documents_that_are_no_choice(document, line):
    with pytest.raises(InputError, match=line):
        choice_of(document)
