"""Plans for new shapes from those of other shapes: eager PyTorch's bits and measured bytes."""

from __future__ import annotations

import copy
import random
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.runtime.compare.peaks import resident_bytes
from memplan.runtime.measuring.live_bytes import live_peak
from memplan.runtime.profile.profile import measure_program
from memplan.runtime.program.structure import structure
from memplan.training import plan as planning
from torch import Tensor, nn
from torch.nn import functional

LENGTHS = random.Random(5).sample(range(3, 65), 40)


class Wide(nn.Module):
    """Layers that draw, and whose activations are more than the weights; a long batch takes one more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(4)
        )
        self.branch_from = 1000

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(torch.tanh(x) if len(x) > self.branch_from else x)


def batch(length: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(length)
    return torch.randn(length, 6), torch.randint(3, (length,))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows when a program is measured."""
    done: list[str] = []
    monkeypatch.setattr(
        planning,
        "measure_program",
        lambda *given, **how: done.append("measured") or measure_program(*given, **how),
    )
    return done


def planned(module: nn.Module, length: int, **options: Any) -> Any:
    x, labels = batch(length)
    given: dict[str, Any] = {"budget": "60%", "solver": "rockmate", "time_limit": 0.5, "cache": False}
    return memplan.optimize(module, x, targets=labels, loss_fn=functional.cross_entropy, **(given | options))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


@pytest.mark.parametrize(("most", "updates"), [(2, True), (8, False)], ids=["updates", "gradients"])
def test_forty_lengths_train_as_eager_pytorch(most: int, updates: bool, measured: list[str]) -> None:
    module = Wide()
    baseline = copy.deepcopy(module)
    optimizer, theirs = sgd(module), sgd(baseline)
    step = planned(module, 64, max_plans=most, budget="75%", optimizer=optimizer if updates else None)
    for length in LENGTHS:
        x, labels = batch(length)
        torch.manual_seed(length)
        expected = functional.cross_entropy(baseline(x), labels)
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        torch.manual_seed(length)
        loss = step(x, targets=labels)
        assert torch.equal(loss.detach(), expected.detach())
        if not updates:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(step.plans) <= most
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(measured) == 1
    for length in LENGTHS[-most:]:  # their plans are there
        x, labels = batch(length)
        peak = live_peak(lambda: step(x, targets=labels).detach())  # noqa: B023
        assert peak.peak_bytes + resident_bytes(step.plans[0].program) <= step.plans[0].budget


@pytest.mark.parametrize("length", [3, 40, 63])
def test_bytes_are_those_that_are_measured(length: int) -> None:
    step = planned(Wide(), 64, budget="100%", optimizer=None)
    x, labels = batch(length)
    step(x, targets=labels).backward()
    derived, expected = step.plan.graph, planned(Wide(), length, budget="100%").plan.graph
    assert "measure" not in step.report().plans[0].setup
    assert derived.tensors.bytes.tolist() == expected.tensors.bytes.tolist()
    assert derived.operations.workspace.tolist() == expected.operations.workspace.tolist()


def test_a_branch_by_lengths_is_another_program_measured_and_compared(measured: list[str]) -> None:
    module = Wide()
    module.branch_from = 30
    step = planned(module, 64, budget="100%")
    for length, made in ((40, 1), (20, 2), (25, 2), (31, 2), (8, 2)):
        x, labels = batch(length)
        torch.manual_seed(0)
        loss = step(x, targets=labels)
        torch.manual_seed(0)
        assert torch.equal(loss.detach(), functional.cross_entropy(module(x), labels).detach())
        loss.backward()
        module.zero_grad()
        assert len(measured) == made
        notes = " ".join(step.report().plans[0].notes)
        # Two batches of each of both programs are compared, whatever their shapes.
        assert ("compared with eager PyTorch's" in notes) == (length != 8)


def test_offloaded_weights_stay_offloaded_by_a_transferred_schedule(measured: list[str]) -> None:
    module = Wide()
    baseline = copy.deepcopy(module)
    own, theirs = sgd(module), sgd(baseline)
    machine = Machine(links=Links(1e9, 1e9))
    step = planned(module, 64, optimizer=own, machine=machine, solver="joint", budget="50%", max_plans=2)
    for length in (64, 50, 33, 60, 64, 33):
        x, labels = batch(length)
        torch.manual_seed(length)
        loss = step(x, targets=labels)
        torch.manual_seed(length)
        expected = functional.cross_entropy(baseline(x), labels)
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        assert torch.equal(loss, expected.detach())
    assert len(measured) == 1
    step.restore_to_device()
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)


def test_verify_compares_each_plan() -> None:
    step = planned(Wide(), 64, budget="100%", verify=True)
    x, labels = batch(20)
    step(x, targets=labels).backward()
    assert "derive" in (setup := step.report().plans[0].setup)
    assert "compare" in setup


def test_structure_is_the_same_for_other_sizes_alone() -> None:
    def of(module: nn.Module, length: int) -> str:
        return structure(planned(module, length, budget="100%", verify=False).plans[0].program)

    module, other = Wide(), Wide()
    other.branch_from = 0
    assert of(module, 64) == of(module, 10)
    assert of(module, 64) != of(other, 64)
