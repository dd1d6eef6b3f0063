"""A plan's first iterations are compared with eager PyTorch's on the same batches, before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import DifferenceError
from memplan.profiling.compare import batch, comparison
from memplan.profiling.compare.comparison import ITERATIONS
from memplan.profiling.compare.eager import run_eager
from memplan.steps.execute import IterationResult, PlannedStep
from memplan.training.plans import verification
from memplan.training.step import executor
from not_none import not_none
from torch import Tensor, nn

BATCHES = torch.randn(5, 8, 6, generator=torch.Generator().manual_seed(3))


class Noisy(nn.Module):
    """Draws random numbers, and changes a buffer in each iteration."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)


def optimized(module: nn.Module, x: Tensor = BATCHES[0], **options: Any) -> Any:
    given = {"loss_fn": mean_square, "budget": "100%", "solver": "store-all", "cache": False}
    return memplan.optimize(module, x, **{**given, **options})


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [t for row in optimizer.state.values() for t in row.values() if isinstance(t, Tensor)]
    gradients = [x.grad for x in module.parameters() if x.grad is not None]
    return [*module.state_dict().values(), *states, *gradients, torch.get_rng_state()]


def by_eager(module: nn.Module, batches: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Train by plain PyTorch; return losses and all that is left."""
    optimizer, losses = sgd(module), list[Tensor]()
    torch.manual_seed(1)
    for x in batches:
        optimizer.zero_grad()
        loss = mean_square(module(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    optimizer.zero_grad()
    return losses, everything(module, optimizer)


@pytest.fixture(autouse=True)
def any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan is refused for its time: those of models as small are not compared on a busy machine."""
    monkeypatch.setattr(verification, "worse_than_eager", lambda *_, **_named: None)


@pytest.fixture
def eager_runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Gets an entry for each iteration of eager PyTorch."""
    done: list[bool] = []
    for file in (batch, comparison):
        monkeypatch.setattr(file, "run_eager", lambda *a, **k: done.append(True) or run_eager(*a, **k))
    return done


@pytest.mark.parametrize("planned", [False, True], ids=["backward", "planned updates"])
def test_training_is_bitwise_eager_s_from_the_first_batch(eager_runs: list[bool], planned: bool) -> None:
    module, counts = Noisy(), list[int]()
    optimizer = sgd(module)
    given: dict[str, Any] = {"optimizer": optimizer} if planned else {"states": optimizer}
    step = optimized(module, **given)
    assert not eager_runs
    torch.manual_seed(1)
    losses: list[Tensor] = []
    for x in BATCHES:
        loss = step(x)
        if not planned:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        counts.append(len(eager_runs))
    optimizer.zero_grad()
    expected, left = by_eager(Noisy(), BATCHES)
    assert counts == [1, *[ITERATIONS] * 4]
    assert all(map(torch.equal, losses, expected))
    assert all(map(torch.equal, everything(module, optimizer), left))
    assert "iterations compared with eager PyTorch's, which take " in str(step.report())


def spoil(monkeypatch: pytest.MonkeyPatch, first: int = 0) -> None:
    """Have planned iterations return a loss that is wrong, from one of them on."""
    run: Callable[..., IterationResult] = PlannedStep.run
    runs: list[bool] = []

    def spoilt(step: PlannedStep, inputs: Any) -> IterationResult:
        outcome = run(step, inputs)
        runs.append(True)
        assert outcome.loss is not None
        return outcome if len(runs) <= first else outcome._replace(loss=outcome.loss + 1)

    monkeypatch.setattr(PlannedStep, "run", spoilt)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [0, 1], ids=["first batch", "second batch"])
@pytest.mark.parametrize("kind", ["backward", "planned updates", "updates after the plan"])
def test_a_difference_refuses_the_step_and_keeps_eager_s_result(
    monkeypatch: pytest.MonkeyPatch, kind: str, first: int
) -> None:
    module = Noisy()
    optimizer = sgd(module)
    given: dict[str, Any] = {"optimizer": optimizer} if kind == "planned updates" else {"states": optimizer}
    if kind == "updates after the plan":
        monkeypatch.setattr("memplan.training.optimize.is_planned", lambda _optimizer: False)
        given = {"optimizer": optimizer}
    step = optimized(module, **given)
    spoil(monkeypatch, first)
    losses: list[Tensor] = []
    torch.manual_seed(1)
    for number, x in enumerate(BATCHES[:3]):
        optimizer.zero_grad()
        if number < first:
            loss = step(x)
        else:
            with pytest.raises(
                DifferenceError, match=r"is not the model's: .* differs from eager"
            ) as refused:
                step(x)
            loss = refused.value.loss
        if kind == "backward":
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    optimizer.zero_grad()
    expected, left = by_eager(Noisy(), BATCHES[:3])
    assert all(map(torch.equal, losses, expected))
    assert all(map(torch.equal, everything(module, optimizer), left))


def test_without_memory_for_eager_s_iteration_the_plan_trains_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Noisy()
    optimizer = sgd(module)
    step = optimized(module, optimizer=optimizer)

    def exhausted(iteration: Any, *given: Any, **more: Any) -> Any:
        run_eager(iteration, *given, **more)
        raise MemoryError

    monkeypatch.setattr(batch, "run_eager", exhausted)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="not compared with eager PyTorch: there is not memory enough"):
        losses = [step(BATCHES[0])]
    losses += [step(x) for x in BATCHES[1:]]
    expected, left = by_eager(Noisy(), BATCHES)
    assert all(map(torch.equal, losses, expected))
    optimizer.zero_grad()
    assert all(map(torch.equal, everything(module, optimizer), left))


def test_plans_of_the_same_calls_share_the_comparison(eager_runs: list[bool]) -> None:
    """The example's shape may never come: then the first batches of another shape are compared."""
    module = Noisy()
    step = optimized(module, states=0, gradients="freed", budget="200%")
    for rows, runs in ((5, 1), (7, 2), (5, 2), (8, 2), (6, 2)):
        step(BATCHES[0][:rows]).backward()
        module.zero_grad()
        assert len(eager_runs) == runs


def test_true_compares_before_training(eager_runs: list[bool]) -> None:
    step = optimized(Noisy(), verify=True)
    assert len(eager_runs) == ITERATIONS
    step(BATCHES[0])
    assert len(eager_runs) == ITERATIONS


def test_an_error_of_the_plan_leaves_all_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Noisy()
    optimizer = sgd(module)
    step = optimized(module, optimizer=optimizer)
    before, iterate = [x.clone() for x in everything(module, optimizer)], executor.Executor._iterate

    def failing(self: Any, *given: Any) -> IterationResult:
        iterate(self, *given)
        raise KeyError("after the iteration")

    monkeypatch.setattr(executor.Executor, "_iterate", failing)
    with pytest.raises(KeyError):
        step(BATCHES[0])
    assert all(map(torch.equal, everything(module, optimizer), before))


class Accumulated:
    """A planned loop over several batches for one update, and the same loop of eager PyTorch."""

    def __init__(self, many: int, kind: str, low: bool, clip: float | None) -> None:
        self.many, self.kind, self.low, self.clip = many, kind, low, clip
        self.module = self.made()
        self.optimizer = self.optimizer_of([*self.module.parameters()])
        options: dict[str, Any] = {} if low is False else {"master_weights": True}
        self.step = optimized(
            self.module,
            self.batches[0],
            optimizer=self.optimizer,
            gradient_accumulation_steps=many,
            max_grad_norm=clip,
            **options,
        )

    def made(self) -> nn.Module:
        return Noisy().to(torch.bfloat16) if self.low else Noisy()

    @property
    def batches(self) -> Tensor:
        many = torch.randn(3 * self.many + 1, 8, 6, generator=torch.Generator().manual_seed(3))
        return many.to(torch.bfloat16) if self.low else many

    def optimizer_of(self, parameters: list[Any]) -> torch.optim.Optimizer:
        if self.kind == "sgd":
            return torch.optim.SGD(parameters, 0.1, momentum=0.9)
        return torch.optim.AdamW(parameters, 0.01, fused=self.kind == "fused")

    def by_plan(self) -> tuple[list[Tensor], list[bool]]:
        """Train; return the losses, and whether each is that of a step that was refused."""
        torch.manual_seed(1)
        losses, refused = list[Tensor](), list[bool]()
        for x in self.batches:
            try:
                losses.append(self.step(x).detach())
                refused.append(False)
            except DifferenceError as error:
                losses.append(not_none(error.loss).detach())
                refused.append(True)
        return losses, refused

    def by_eager(self) -> tuple[list[Tensor], nn.Module, list[Tensor]]:
        """Train; return losses, the module and the sums of the last update, which has begun."""
        module = self.made()
        weights = [*module.parameters()]
        masters = [nn.Parameter(w.detach().float()) if self.low else w for w in weights]
        optimizer = self.optimizer_of(masters)
        torch.manual_seed(1)
        losses: list[Tensor] = []
        for number, x in enumerate(self.batches, start=1):
            loss = mean_square(module(x))
            (loss / self.many).backward()
            losses.append(loss.detach())
            if number % self.many:
                continue
            if self.clip is not None:
                nn.utils.clip_grad_norm_(weights, self.clip)
            if self.low:
                for master, weight in zip(masters, weights, strict=True):
                    master.grad = None if weight.grad is None else weight.grad.float()
            optimizer.step()
            if self.low:
                for master, weight in zip(masters, weights, strict=True):
                    weight.data.copy_(master)
            for each in (*weights, *masters):
                each.grad = None
        return losses, module, [x.grad for x in weights if x.grad is not None]

    def check(self, losses: list[Tensor]) -> None:
        expected, module, sums = self.by_eager()
        assert all(map(torch.equal, losses, expected))
        mine, theirs = self.module.state_dict(), module.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        own = [self.optimizer.state[p]["gradient_sum"] for p in self.module.parameters()]
        assert all(map(torch.equal, own, sums))


UPDATES = [
    (2, "adamw", False, None),
    (3, "adamw", False, 0.1),
    (3, "sgd", False, None),
    (4, "fused", False, 0.1),
    (3, "adamw", True, None),
    (2, "sgd", True, 0.1),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("many", "kind", "low", "clip"), UPDATES)
def test_batches_of_an_update_are_compared_one_of_each_kind(
    eager_runs: list[bool], many: int, kind: str, low: bool, clip: float | None
) -> None:
    loop = Accumulated(many, kind, low, clip)
    assert not eager_runs
    losses, refused = loop.by_plan()
    assert len(eager_runs) == 2 * ITERATIONS + (many > 2)
    assert not any(refused)
    loop.check(losses)


@pytest.mark.scripts
@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize(("many", "kind", "low", "clip"), UPDATES)
def test_a_difference_in_the_midst_of_an_update_keeps_eager_s_result(
    monkeypatch: pytest.MonkeyPatch, many: int, kind: str, low: bool, clip: float | None, first: int
) -> None:
    """From the first batch that is compared on each is, and eager's trains."""
    loop = Accumulated(many, kind, low, clip)
    spoil(monkeypatch, first)
    losses, refused = loop.by_plan()
    if first < 4 or many > 2:
        assert any(refused)
        begin = refused.index(True)
        assert all(refused[begin:])
        loop.check([*loop.by_eager()[0][:begin], *losses[begin:]] if begin > first else losses)
