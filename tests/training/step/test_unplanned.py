"""Steps that are planned by the batch of their first call: the bits of the eager loop, and answers to what is
asked too early or in the wrong order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, cast

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError, MemplanError
from memplan.training.step.step import Step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

LOSS, OPTIMIZE = functional.cross_entropy, cast("Any", memplan.optimize)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Linear(16, 3))


def trained(module: nn.Module, iterate: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """Train on shuffled batches, the last one smaller, drawing all from the global generator."""
    torch.manual_seed(5)
    rows = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    found: list[Tensor] = []
    for _epoch in range(2):
        for x, y in DataLoader(rows, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = iterate(x, y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
    return [*found, *module.state_dict().values(), torch.get_rng_state()]


def test_a_loop_planned_at_its_first_call_has_the_bits_of_the_eager_loop() -> None:
    first, second = model(), model()
    step = memplan.optimize(first, loss_fn=functional.cross_entropy, budget="100%")
    planned = trained(first, lambda x, y: step(x, targets=y))
    eager = trained(second, lambda x, y: functional.cross_entropy(second(x), y))
    assert all(map(torch.equal, planned, eager))
    assert len(step.report().plans) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["tensor", "positional", "tuple", "named", "dict"])
def test_the_first_call_takes_every_form_of_batch(form: str) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            return self.layer(x if y is None else x + y).square().mean()

    module, x, y = Pair(), torch.randn(2, 3), torch.randn(2, 3)
    step = memplan.optimize(module, budget="100%")
    calls: dict[str, Callable[[], Tensor]] = {
        "tensor": lambda: step(x),
        "positional": lambda: step(x, y),
        "tuple": lambda: step((x, y)),
        "named": lambda: step(x=x, y=y),
        "dict": lambda: step({"x": x, "y": y}),
    }
    for _again in range(2):
        loss = calls[form]()
        loss.backward()
        assert torch.equal(loss, module(x) if form == "tensor" else module(x, y))
    assert len(step.plans) == 1


def test_nothing_is_drawn_or_changed_before_the_first_call() -> None:
    module = model()
    before, numbers = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    step = memplan.optimize(module, loss_fn=functional.cross_entropy, budget="100%")
    assert isinstance(step, Step)
    assert torch.equal(numbers, torch.get_rng_state())
    assert all(map(torch.equal, before.values(), module.state_dict().values()))
    assert "first called" not in repr(step)
    assert "0 plans" in repr(step)


@pytest.mark.parametrize(
    "ask", [lambda s: s.plan, lambda s: s.report(), lambda s: s.output, lambda s: s.evaluate(1)]
)
def test_what_only_a_plan_knows_is_refused_before_the_first_call(ask: Callable[[Any], Any]) -> None:
    step = memplan.optimize(model(), loss_fn=functional.cross_entropy, budget="100%")
    with pytest.raises(MemplanError, match="planned when it is first called with a batch"):
        ask(step)


def test_a_run_resumes_before_its_first_call(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, Step]:
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        return module, memplan.optimize(
            module, loss_fn=functional.cross_entropy, budget="100%", optimizer=optimizer
        )

    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    module, step = made()
    step(x, targets=y)
    step.save(tmp_path / "run", extra={"epoch": 3})
    wanted = [step(x, targets=y), *module.state_dict().values()]
    other, resumed = made()
    assert resumed.load(tmp_path / "run") == {"epoch": 3}
    assert all(map(torch.equal, wanted, [resumed(x, targets=y), *other.state_dict().values()]))


def test_threads_that_call_it_first_make_one_plan() -> None:
    module = nn.Linear(4, 4)
    step, losses = memplan.optimize(module, loss_fn=Tensor.mean, budget="100%"), list[Tensor]()

    def call() -> None:
        loss = step(torch.ones(2, 4))
        losses.append(loss.detach())
        loss.backward()

    threads = [Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(losses) == 3
    assert len(step.plans) == 1


@pytest.mark.scripts
def test_a_first_call_that_fails_leaves_the_step_to_be_planned() -> None:
    step = memplan.optimize(model(), loss_fn=functional.cross_entropy, budget="100%")
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    with pytest.raises(MemplanError, match=r"give the labels as targets=y, to the step too"):
        step(x)
    assert step(x, targets=y).isfinite()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda m, x, y: OPTIMIZE(m, x, y, budget="100%"), r"optimize\(module, inputs, targets="),
        (
            lambda m, x, y: memplan.optimize(m, (x, y), loss_fn=LOSS, budget="100%"),
            "targets=",
        ),
        (
            lambda m, x, y: memplan.optimize(m, x, loss_fn=LOSS, budget="100%"),
            "targets=y",
        ),
        (lambda m, x, y: memplan.optimize(x, m, budget="100%"), "the module is a Tensor"),
    ],
)
def test_mistakes_are_answered_with_the_right_call(call: Callable[..., Any], line: str) -> None:
    with pytest.raises(MemplanError, match=line):
        call(model(), torch.randn(8, 6), torch.randint(3, (8,)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_fn", LOSS),
        ("targets", torch.ones(8)),
        ("update", "after"),
        ("gradient_accumulation_steps", 4),
        ("states", 0),
        ("gradients", "freed"),
        ("cuda_graph", True),
    ],
)
def test_training_options_are_refused_without_training(name: str, value: Any) -> None:
    module, options = model(), {name: value}
    line = f"{name}= is for training, and train=False runs forward alone"
    with pytest.raises(InputError, match=line):
        memplan.optimize(module, budget="100%", train=False, **options)
