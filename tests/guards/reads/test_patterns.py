"""Code that reads values for its own records: lists, counters, texts.

It runs once more after each planned iteration, with the values that this one has computed. The oracle is
eager PyTorch, eight updates: losses, weights, and all that the code has kept.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import MemplanError, MismatchError
from not_none import not_none
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Use = Callable[["Model", Tensor, Tensor], Tensor | None]
PLAN: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}


class Model(nn.Module):
    """Two layers. use: what is done with the batch and the rows between; it may return other rows."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.use = use
        self.kept: list[Any] = []
        self.calls, self.mean, self.best = 0, 0.0, -1.0
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.first(x)).relu()
        other = self.use(self, x, rows)
        return self.last(rows if other is None else other)


def item(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.kept.append(rows.mean().item())


def number(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.mean += float(rows.detach().sum())
    model.calls += 1


def several(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.kept += rows.detach().mean(1).tolist()
    model.kept.append(rows.detach().numpy().max())


def text(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.kept.append(f"{rows.detach().std():.6f}")


def printed(_model: Model, _x: Tensor, rows: Tensor) -> None:
    print(f"mean {rows.mean().item():.6f}")


def running_mean(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.mean = 0.9 * model.mean + 0.1 * rows.std().item()
    model.best = max(model.best, model.mean)


def every_third(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.calls += 1
    if model.calls % 3 == 0:
        model.kept.append(rows.max().item())


def window(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.kept.append(rows.mean().item())
    if len(model.kept) > 3:
        model.kept.pop(0)
    model.mean = sum(model.kept) / len(model.kept)


def picked(model: Model, _x: Tensor, rows: Tensor) -> None:
    large = rows[rows > 0.5]
    model.kept.append(large.mean().item() if large.numel() else None)


def branch(model: Model, x: Tensor, rows: Tensor) -> None:
    """The first batches have one sign, the last another: a branch that the trace has not taken."""
    model.kept.append((rows / x.abs().sum()).sum().item() if x[0, 0] > 0 else (x - 1).mean().item())


def tensors(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.state = rows.detach()
    model.kept.append(rows.mean().detach())
    model.best = rows.max().item()


def weights(model: Model, x: Tensor, _rows: Tensor) -> None:
    """Before the update; the running mean as the batch has left it."""
    model.kept += [model.first.weight.norm().item(), model.last.bias[0].item(), x[0, 0].item()]
    model.kept += [not_none(model.norm.running_mean).sum().item()]


def after_dropout(model: Model, _x: Tensor, rows: Tensor) -> Tensor:
    rows = functional.dropout(rows, 0.5)
    model.kept.append(rows.count_nonzero().item())
    return functional.dropout(rows, 0.3)


def checked(_model: Model, _x: Tensor, rows: Tensor) -> None:
    if torch.isnan(rows).any():
        raise ValueError("a row is nan")


def counted(model: Model, _x: Tensor, _rows: Tensor) -> None:
    model.calls += 1


def shapes(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.kept.append(len(rows))


def last_rows(model: Model, _x: Tensor, rows: Tensor) -> None:
    model.state = rows.detach()


def last_batch(model: Model, x: Tensor, _rows: Tensor) -> None:
    model.state = x


FOLLOWED = [
    counted,
    shapes,
    last_rows,
    last_batch,
    item,
    number,
    several,
    text,
    printed,
    running_mean,
    every_third,
    window,
    picked,
    branch,
    tensors,
    weights,
    after_dropout,
    checked,
]


def batches() -> list[Tensor]:
    torch.manual_seed(1)
    found = [torch.randn(6, 4) for _ in range(8)]
    for number, x in enumerate(found):
        x[0, 0] = x[0, 0].abs() * (1 if number < 4 else -1)
    return found


def updates(use: Use, *, planned: bool) -> tuple[Model, list[float], str]:
    model, targets = Model(use), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    given = batches()
    step: Any = lambda x, targets: functional.cross_entropy(model(x), targets)  # noqa: E731
    written = io.StringIO()
    if planned:
        loss_fn = functional.cross_entropy
        with redirect_stdout(written):  # what a trace guesses is printed for nobody
            step = memplan.optimize(model, (given[0],), targets=targets, loss_fn=loss_fn, **PLAN)
        assert step.plans[0].program.host_part is not None
    losses: list[float] = []
    torch.manual_seed(2)
    with redirect_stdout(written):
        for x in given:
            optimizer.zero_grad()
            loss = step(x, targets=targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if planned:
        assert len(step.plans) == 1
    return model, losses, written.getvalue()


def kept(model: Model) -> str:
    def value(thing: Any) -> Any:
        return thing.tolist() if isinstance(thing, Tensor) else thing

    return repr([[*map(value, model.kept)], model.calls, model.mean, model.best, value(model.state)])


@pytest.mark.scripts
@pytest.mark.sampled(4)
@pytest.mark.parametrize("use", FOLLOWED, ids=lambda use: use.__name__)
def test_code_keeps_the_values_that_eager_pytorch_gives_it(use: Use) -> None:
    model, losses, written = updates(use, planned=True)
    eager, expected, its = updates(use, planned=False)
    assert losses == expected
    assert kept(model) == kept(eager)
    assert written == its
    both = zip(model.state_dict().values(), eager.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in both)
    assert not any(isinstance(thing, Tensor) and type(thing) is not Tensor for thing in model.kept)


def test_state_that_no_code_repeats_is_named() -> None:
    model = Model(counted)
    with pytest.warns(UserWarning, match=r"module\.calls stays as it is: the code changes it in each"):
        planned = memplan.optimize_module(model, batches()[0], **PLAN)
    planned(batches()[1]).sum().backward()
    assert model.calls == 0


@pytest.mark.scripts
def test_a_cache_is_no_state_that_each_iteration_changes() -> None:
    def cached(model: Model, _x: Tensor, rows: Tensor) -> None:
        if model.state is None:
            model.state = torch.arange(len(rows))

    model, targets = Model(cached), torch.tensor([0, 1, 2, 0, 1, 2])
    loss_fn = functional.cross_entropy
    step = memplan.optimize(model, (batches()[0],), targets=targets, loss_fn=loss_fn, **PLAN)
    assert step.plans[0].program.host_part is None


def decides(model: Model, _x: Tensor, rows: Tensor) -> Tensor:
    model.kept.append(rows.mean().item())
    return rows * 2 if rows.mean().item() > 0.5 else rows


def scales(model: Model, _x: Tensor, rows: Tensor) -> Tensor:
    model.kept.append(rows.mean().item())
    return rows / rows.max().item()


def hidden(model: Model, _x: Tensor, rows: Tensor) -> Tensor:
    model.kept.append(rows.mean().item())
    rows = rows if model.state is None else rows + model.state
    model.state = rows.detach()
    return rows


def warms_up(model: Model, _x: Tensor, rows: Tensor) -> Tensor:
    model.kept.append(rows.mean().item())
    model.calls += 1
    return rows if model.calls > 500 else rows / 2


def fills_a_buffer(model: Model, _x: Tensor, rows: Tensor) -> None:
    if rows.mean().item() > 0.1:
        not_none(model.norm.running_var).mul_(2)


REFUSED: dict[Use, str] = {
    decides: r"test_patterns\.py:\d+: its code depends on the values",
    scales: r"test_patterns\.py:\d+: its code depends on the values",
    hidden: r"test_patterns\.py:\d+: computes something else in a second iteration",
    warms_up: r"uses module\.calls, which the iteration itself changes",
    fills_a_buffer: r"test_patterns\.py:\d+: its code depends on the values",
}


@pytest.mark.scripts
@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", REFUSED, ids=lambda use: use.__name__)
def test_a_value_that_leads_to_the_loss_is_refused_with_its_line(use: Use) -> None:
    with pytest.raises(MemplanError, match=REFUSED[use]):
        updates(use, planned=True)


def rarely(model: Model, x: Tensor, rows: Tensor) -> Tensor:
    """A branch that none of the answers which a trace tries takes."""
    model.kept.append(rows.mean().item())
    return rows * 2 if round(x[0, 0].item() * 8) == 24 else rows


@pytest.mark.scripts
def test_an_iteration_that_takes_another_way_after_all_is_refused() -> None:
    model, targets = Model(rarely), torch.tensor([0, 1, 2, 0, 1, 2])
    given = batches()[0]
    step = memplan.optimize(model, (given,), targets=targets, loss_fn=functional.cross_entropy, **PLAN)
    step(given, targets=targets).backward()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    given = given.clone()
    given[0, 0] = 3.0
    with pytest.raises(MismatchError, match=r"test_patterns\.py:\d+: the code takes another way"):
        step(given, targets=targets)
    now = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(now, before, strict=True))


@pytest.mark.scripts
def test_a_count_of_tokens_makes_no_plan_of_its_own() -> None:
    """A whole number of the batch, read for a log: a model with such inputs has one plan for all."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.tokens = nn.Embedding(9, 4), 0

        def forward(self, words: Tensor, mask: Tensor) -> Tensor:
            self.tokens += int(mask.sum())
            return ((self.table(words).square().sum(-1) * mask).sum() / mask.sum().clamp(min=1)).sqrt()

    def batch(number: int) -> dict[str, Tensor]:
        words = torch.randint(9, (3, 5), generator=torch.Generator().manual_seed(number))
        return {"words": words, "mask": (words > number % 5).long()}

    model, eager = Words(), Words()
    step = memplan.optimize(model, batch(0), **PLAN)
    for number in range(10):
        loss, expected = step(**batch(number)), eager(**batch(number))
        assert torch.equal(loss, expected)
        loss.backward()
        expected.backward()
    assert model.tokens == eager.tokens > 0
    assert len(step.plans) == 1
    assert torch.equal(not_none(model.table.weight.grad), not_none(eager.table.weight.grad))


@pytest.mark.scripts
def test_an_evaluation_keeps_values_too() -> None:
    model, targets = Model(item), torch.tensor([0, 1, 2, 0, 1, 2])
    given = batches()[0]
    step = memplan.optimize(model, (given,), targets=targets, loss_fn=functional.cross_entropy, **PLAN)
    step.evaluate(given, targets=targets)
    eager = Model(item).eval()
    eager(given)
    assert model.kept == eager.kept
