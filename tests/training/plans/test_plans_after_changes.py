"""What has changed since a plan was made: followed, or refused in one line, in the midst of training too."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from memplan.graphs.machine import Links, Machine
from memplan.training.plans import adapt, training_log
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, parametrizations, vector_to_parameters

X, LABELS = torch.randn(8, 6), torch.randint(3, (8,))
config: Any = ModuleType("config")
config.__file__ = "config.py"
FACTOR = 1.0
OPTIONS = Namespace(factor=1.0, epoch=0)


class Scaled(nn.Module):
    """Its output times what the plain numbers say that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 3)
        )
        self._factor = 1.0
        self.table = {"factor": 1.0}
        self.numbers = [1.0]
        self.options = Namespace(factor=1.0)
        self.out: Callable[[Tensor], Tensor] = torch.tanh

    @property
    def both(self) -> float:
        return self._factor * self.table["factor"]

    def forward(self, x: Tensor) -> Tensor:
        self._calls = getattr(self, "_calls", 0) + 1
        return self.out(self.net(x)) * self.both * self.numbers[0] * self.options.factor


class Loss:
    """Beside its factor it has what only the loop counts, and no code that the loss runs reads."""

    def __init__(self) -> None:
        self.factor, self.steps, self.weights = 1.0, 0, np.ones(2)

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return self.loss(output, labels) * OPTIONS.factor

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(output, labels) * self.factor * FACTOR * float(self.weights[0])

    def fit(self) -> None:
        self.steps += 1


def model() -> Scaled:
    torch.manual_seed(0)
    return Scaled()


def planned(module: nn.Module, loss_fn: Any = functional.cross_entropy, **options: Any) -> Any:
    given: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}
    given["max_plans"] = 1
    return memplan.optimize(module, X, targets=LABELS, loss_fn=loss_fn, **{**given, **options})


def assert_as_eager(step: Any, module: nn.Module, loss_fn: Any = functional.cross_entropy) -> None:
    torch.manual_seed(5)
    loss = step(X, targets=LABELS).detach()
    torch.manual_seed(5)
    assert torch.equal(loss, loss_fn(module(X), LABELS))


def change(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, dict | list | np.ndarray):
        elements: Any = holder
        elements[name] = value
    else:
        setattr(holder, name, value)


@pytest.mark.scripts
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (lambda m, _l: m, "_factor"),
        (lambda m, _l: m.table, "factor"),
        (lambda m, _l: m.numbers, 0),
        (lambda m, _l: m.options, "factor"),
        (lambda _m, loss: loss, "factor"),
        (lambda _m, loss: loss.weights, 0),
        (lambda _m, _l: OPTIONS, "factor"),
        (lambda _m, _l: globals(), "FACTOR"),
    ],
    ids=["private", "a dict", "a list", "a namespace", "the loss's", "an array", "a global's", "a global"],
)
def test_a_number_that_the_code_reads_has_changed(
    where: Callable[[Scaled, Loss], Any], name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, loss = model(), Loss()
    for each in ("FACTOR", "OPTIONS"):  # back afterwards
        monkeypatch.setitem(globals(), each, 1.0 if each == "FACTOR" else Namespace(factor=1.0, epoch=0))
    step = planned(module, loss)
    step(X, targets=LABELS).backward()
    change(where(module, loss), name, 0.5)
    with pytest.warns(UserWarning, match=r"0\.5.*; the plan is for .*1\..*; another plan is made"):
        assert_as_eager(step, module, loss)
    change(where(module, loss), name, 1.0)
    assert_as_eager(step, module, loss)
    assert len(step.plans) == 1


@pytest.mark.scripts
def test_a_number_of_a_closure_has_changed() -> None:
    factor = 1.0
    module = model()
    step = planned(module, loss := lambda output, labels: functional.cross_entropy(output, labels) * factor)
    step(X, targets=LABELS).backward()
    factor = 0.5
    with pytest.warns(UserWarning, match=r"loss_fn\.factor is 0\.5; the plan is for 1\.0"):
        assert_as_eager(step, module, loss)


@pytest.mark.scripts
def test_a_function_that_the_code_calls_is_another() -> None:
    module = model()
    step = planned(module)
    module.out = torch.relu
    with pytest.warns(UserWarning, match=r"module\.out is .*relu.*; the plan is for .*tanh"):
        assert_as_eager(step, module)


@pytest.mark.scripts
def test_what_no_code_of_the_iteration_reads_may_change() -> None:
    """What it writes too: a module's own count, which a plain evaluation moves as well."""
    module, loss = model(), Loss()
    step = planned(module, partial(loss))
    for _turn in range(3):
        step(X, targets=LABELS).backward()
        module(X)
        loss.fit()
        OPTIONS.epoch += 1
        module.numbers = [1.0]
    assert module._calls == 6
    assert loss.steps == 3


@pytest.mark.scripts
def test_a_number_of_a_users_own_file_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "factor", 1.0, raising=False)
    module = model()
    loss: Any = lambda output, labels: functional.cross_entropy(output, labels) * config.factor  # noqa: E731
    step = planned(module, loss)
    monkeypatch.setattr(config, "factor", 0.5)
    with pytest.warns(UserWarning, match=r"config\.factor is 0\.5; the plan is for 1\.0"):
        assert_as_eager(step, module, loss)


@pytest.mark.scripts
def test_weights_that_are_tied_since() -> None:
    module = model()
    step = planned(module)
    module.net[3].bias = nn.Parameter(torch.zeros(16))
    step(X, targets=LABELS).backward()
    module.net[3].bias = module.net[0].bias
    with pytest.raises(memplan.MismatchError, match=r"net\.3\.bias and net\.0\.bias are one tensor now"):
        step(X, targets=LABELS)


@pytest.mark.scripts
def test_a_weight_that_the_optimizer_has_no_longer() -> None:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters())
    step = planned(module, optimizer=optimizer)
    step(X, targets=LABELS)
    module.load_state_dict({name: x.clone() for name, x in module.state_dict().items()}, assign=True)
    with pytest.raises(memplan.MismatchError, match=r"net\.0\.weight was replaced; the optimizer"):
        step(X, targets=LABELS)


def evaluating(module: Scaled, _optimizer: torch.optim.Optimizer) -> None:
    module.eval()


def normed(module: Scaled, _optimizer: torch.optim.Optimizer) -> None:
    parametrizations.weight_norm(module.net[3])


def decaying(_module: Scaled, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


@pytest.mark.scripts
@pytest.mark.parametrize("changed", [evaluating, normed, decaying])
def test_a_change_just_when_another_plan_takes_over(
    changed: Callable[[Scaled, torch.optim.Optimizer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan that takes over holds for the module that was traced, not for the one that it finds."""
    monkeypatch.setattr(adapt, "COUNTED_ITERATIONS", 1)
    monkeypatch.setattr(adapt, "WORTH", float("inf"))
    monkeypatch.setattr(adapt, "_moved", lambda plan, _machine, _seconds: plan)
    monkeypatch.setattr(training_log.TrainingLog, "drift", lambda _book, _step: (2.0, 1.0))
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = planned(module, optimizer=optimizer)
    step(X, targets=LABELS)  # from here on timed, the next one begins with another plan
    before = step.plans[0]
    changed(module, optimizer)
    for _turn in range(2):
        with pytest.raises(memplan.MismatchError, match=r"the plan is for|changed after the plan was made"):
            step(X, targets=LABELS)
    assert step.plans[0] is before


@pytest.mark.scripts
def test_autocast_around_optimize_and_all_that_it_compares() -> None:
    """Its cache of weights in bfloat16 outlives an update there."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = planned(module, optimizer=optimizer, verify=True)
        step(X, targets=LABELS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", [True, False])
def test_a_hook_on_the_optimizers_steps_is_refused(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is traced: a trace takes seconds."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    if before:
        optimizer.register_step_post_hook(lambda *_arguments, **_named: None)
        monkeypatch.setattr("memplan.tracing.trace._attempt", None)
        with pytest.raises(memplan.MemplanError, match="the optimizer has a hook on its steps"):
            planned(module, optimizer=optimizer)
        return
    step = planned(module, optimizer=optimizer)
    step(X, targets=LABELS)
    optimizer.register_step_pre_hook(lambda *_arguments, **_named: None)
    with pytest.raises(memplan.MemplanError, match="the optimizer has a hook on its steps"):
        step(X, targets=LABELS)


@pytest.mark.scripts
def test_weights_that_become_parts_of_one_vector() -> None:
    """Each that the plan moves has memory of its own again, with the vector's values."""
    links = Machine(links=Links(1e9, 1e9))
    baseline, module = model(), model()
    theirs, own = (torch.optim.SGD(each.parameters(), 0.1) for each in (baseline, module))
    step = planned(module, optimizer=own, machine=links, solver="l2l", budget="90%")
    for turn in range(3):
        torch.manual_seed(turn)
        loss = functional.cross_entropy(baseline(X), LABELS)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.manual_seed(turn)
        assert torch.equal(step(X, targets=LABELS), loss)
        for each in (baseline, module):
            vector_to_parameters(parameters_to_vector(each.parameters()) * 0.9, each.parameters())
    for one, other in zip(baseline.parameters(), module.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.scripts
def test_a_large_array_or_text_is_named_in_one_line() -> None:
    table, words = np.ones((40, 40)), ["a\nb" * 100]

    def loss_of(output: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(output, labels) * float(table[0, 0]) * (1 if words[0] else 2)

    for change in (lambda: table.fill(2.0), lambda: (table.fill(1.0), words.__setitem__(0, "c\nd" * 100))):
        step = planned(model(), loss_of)
        step(X, targets=LABELS)
        change()
        with pytest.warns(UserWarning, match="another plan is made") as caught:
            step(X, targets=LABELS)
        text = next(text for each in caught if "another plan" in (text := str(each.message)))
        assert len(text.splitlines()) == 1
        assert len(text) < 500
