"""Functions of modules and a batch, planned: the results, gradients and random numbers of the functions."""

from __future__ import annotations

import copy
import dis
import gc
import re
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import memplan
import numpy as np
import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.training import function as function_module
from memplan.training.function import PlannedFunction
from memplan.training.options import Options
from memplan.training.step.step import Step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten

Planned = Callable[[Any], Any]


def encoder(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, width))


def losses_of(model: Any, teacher: Any, x: Tensor, noise: Tensor) -> Tensor:
    """A loss that calls a model twice, a part of it once, and another model without gradients."""
    one, other = model(x), model(x + noise)
    with torch.no_grad():
        wanted = teacher(x)
    pairs = functional.cross_entropy(one @ other.T, torch.arange(len(x)))
    return pairs + functional.mse_loss(one, wanted) + model[0](x).square().mean()


def distillation(plan: Planned) -> Callable[[Tensor, int], Any]:
    model = encoder()
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    function = plan(losses_of)
    return lambda x, _i: (model, function(model, teacher, x, noise=torch.ones_like(x)))


def several_results(plan: Planned) -> Callable[[Tensor, int], Any]:
    model = encoder()

    def terms(net: nn.Module, x: Tensor) -> dict[str, Any]:
        out = net(x)
        return {"loss": out.square().mean(), "kind": "mse", "out": out.detach()}

    function = plan(terms)
    return lambda x, _i: (model, function(model, x))


def loss_first(plan: Planned) -> Callable[[Tensor, int], Any]:
    model = encoder()

    def terms(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        out = net(x)
        return out.square().mean(), out.detach()

    function = plan(terms)
    return lambda x, _i: (model, function(model, x))


def closure(plan: Planned) -> Callable[[Tensor, int], Any]:
    model = encoder()

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean()

    function = plan(loss)
    return lambda x, _i: (model, function(x))


def agent(plan: Planned) -> Callable[[Tensor, int], Any]:
    class Agent:
        """An object that is no module, with two networks and things that no plan concerns."""

        def __init__(self) -> None:
            self.actor, self.critic, self.replay = encoder(), encoder(), [object()] * 3

        def evaluate(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
            chosen = self.actor(x).log_softmax(-1).gather(1, action[:, None])
            return chosen, self.critic(x).mean(-1)

        def loss(self, x: Tensor, action: Tensor) -> Tensor:
            chosen, value = self.evaluate(x, action)
            return -(chosen * value.detach()[:, None]).mean() + value.square().mean()

        loss = plan(loss)

    one = Agent()
    return lambda x, _i: (nn.ModuleList([one.actor, one.critic]), one.loss(x, (x[:, 0] > 0).long()))


def training_step(plan: Planned) -> Callable[[Tensor, int], Any]:
    class Lightning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = encoder()

        @plan
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            return functional.mse_loss(self.net(x), y)

    module = Lightning()
    return lambda x, i: (module, module.training_step((x, -x), i))


KINDS = [distillation, several_results, loss_first, closure, agent, training_step]


def curve(kind: Any, plan: Planned) -> list[Any]:
    torch.manual_seed(2)
    call, optimizer, found = kind(plan), None, list[Any]()
    for i in range(5):
        x = torch.randn(6 if i < 4 else 3, 8)
        module, result = call(x, i)
        optimizer = optimizer or torch.optim.AdamW(module.parameters(), lr=0.02)
        leaves, _form = tree_flatten(result)
        found += [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
        loss = next(leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *module.state_dict().values(), torch.get_rng_state()]


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.scripts
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_planned_function_trains_as_the_function_does(kind: Any) -> None:
    planned = curve(kind, memplan.optimize(budget="100%"))
    eager = curve(kind, lambda function: function)
    assert len(planned) == len(eager)
    assert all(map(same, planned, eager))


@pytest.mark.scripts
def test_it_has_a_plan_for_each_shape_whatever_the_index_of_the_batch() -> None:
    class Lightning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = encoder()

        @memplan.optimize(budget="100%")
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.net(batch).mean()

    module = Lightning()
    for index in range(4):
        module.training_step(torch.randn(4, 8), index).backward()
    assert [plan.iterations for plan in module.training_step.report().plans] == [4]


@pytest.mark.scripts
def test_other_modules_have_a_step_of_their_own() -> None:
    @memplan.optimize(budget="100%")
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    one, other, x = encoder(), encoder(), torch.randn(4, 8)
    for model in (one, other, one):
        model.eval()
        assert torch.equal(loss(model, x), model(x).square().mean())
        loss(model, x).backward()
        assert model[0].weight.grad is not None


class Table:
    """Constants that a function reads: a tensor and a number."""

    def __init__(self, factor: float) -> None:
        self.factors, self.factor = torch.full((8,), factor), factor


class Holder:
    """An object that is no module, and has one."""

    def __init__(self) -> None:
        self.net = encoder().eval()


@pytest.mark.scripts
@pytest.mark.parametrize("what", ["a module", "an object", "a number", "an attribute"])
def test_what_a_closure_has_by_now_counts(what: str) -> None:
    """Eager PyTorch reads a variable of the closure, or an attribute, at each call."""
    model, table, number, holder = encoder().eval(), Table(2.0), 2.0, Holder()

    def loss(x: Tensor, holder: Holder) -> Tensor:
        return (model(x) * table.factors * number + holder.net(x)).square().mean()

    planned, x = memplan.optimize(loss, budget="100%"), torch.randn(4, 8)
    planned(x, holder).backward()
    if what == "a module":
        model = encoder().eval()
    elif what == "an object":
        table = Table(3.0)
    elif what == "a number":
        number = 3.0
    else:
        holder.net = encoder().eval()
    for _again in range(2):
        found = planned(x, holder)
        found.backward()
        assert torch.equal(found, loss(x, holder))


def test_a_number_that_changes_makes_another_plan_of_the_same_step() -> None:
    model, number = encoder().eval(), 2.0

    def loss(x: Tensor) -> Tensor:
        return model(x).square().mean() * number

    planned, x = memplan.optimize(loss, budget="100%"), torch.randn(4, 8)
    planned(x).backward()
    number = 3.0
    assert torch.equal(planned(x), loss(x))
    assert len(planned.report().plans) == 2


@pytest.mark.scripts
def test_steps_are_kept_for_as_many_models_as_max_plans_says() -> None:
    @memplan.optimize(budget="100%", max_plans=2)
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    x, models = torch.randn(4, 8), [encoder().eval() for _ in range(3)]
    gone = [weakref.ref(model) for model in models]
    for model in models:
        loss(model, x).backward()
    del model
    models.clear()
    gc.collect()
    assert [each() is None for each in gone] == [True, False, False]


def test_partial_functions_and_code_that_reads_names() -> None:
    def loss(factor: float, model: nn.Module, x: Tensor, unread: float) -> Tensor:
        return model(x).mean() * factor * eval("unread")

    model, x = encoder().eval(), torch.randn(4, 8)
    given: Any = partial(loss, 2.0, model)
    planned = memplan.optimize(given, budget="100%")
    assert torch.equal(planned(x, 3.0), given(x, 3.0))


def test_a_parameter_that_a_joined_instruction_reads_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.13 on one instruction may store one variable and load another, or load two."""

    def loss(weight: Tensor, model: nn.Module, images: Tensor, index: int) -> None: ...

    joined = [("STORE_FAST_LOAD_FAST", ("x", "weight")), ("STORE_FAST", "index")]
    borrowed = ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ("model", "images"))
    made = [SimpleNamespace(opname=name, argval=value) for name, value in (*joined, borrowed)]
    monkeypatch.setattr(dis, "get_instructions", lambda _code: iter(made))
    assert function_module._unused(loss) == {"index"}


def test_without_gradients_the_function_itself_runs() -> None:
    @memplan.optimize(budget="100%")
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    model = encoder()
    with torch.no_grad():
        assert not loss(model, torch.randn(4, 8)).requires_grad
    assert loss.step is None
    with pytest.raises(InputError, match="loss has no plan yet: it is planned when it is called"):
        loss.report()


def test_an_example_plans_at_once_and_must_be_complete() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    model, x = encoder(), torch.randn(4, 8)
    assert memplan.optimize(loss, (model, x), budget="100%").step is not None
    with pytest.raises(InputError, match=r"the module included, like \(model, batch\)"):
        memplan.optimize(loss, x, budget="100%")


def test_a_function_without_a_module_is_refused() -> None:
    @memplan.optimize(budget="100%")
    def loss(x: Tensor) -> Tensor:
        return x.square().mean()

    with pytest.raises(InputError, match="loss is given no module, and reaches none: give it the model"):
        loss(torch.randn(3))


def test_updates_in_the_plan() -> None:
    models = encoder().eval(), encoder().eval()
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.02) for model in models]

    @memplan.optimize(budget="100%", optimizer=optimizers[0])
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    for _ in range(3):
        x = torch.randn(4, 8)
        optimizers[1].zero_grad()
        eager = models[1](x).square().mean()
        eager.backward()
        optimizers[1].step()
        assert torch.equal(loss(models[0], x), eager)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))


class Samples(NamedTuple):
    observations: Tensor
    actions: Tensor


def test_an_attribute_with_the_name_of_a_global_is_no_part_of_the_function() -> None:
    """TD3's script: `data.actions` in the loss, and a global `actions` that each iteration makes anew."""
    q, names = encoder(), dict[str, Any]()
    code = "def loss(data):\n    return q(data.observations + data.actions).square().mean()\n"
    exec(compile(code, __file__, "exec"), names)  # the globals of a script
    names["q"] = q
    planned = memplan.optimize(names["loss"], budget="100%", solver="store-all", cache=False)
    steps = set[int]()
    for _iteration in range(3):
        names["actions"] = np.zeros(3)
        planned(Samples(torch.randn(4, 8), torch.randn(4, 8)))
        steps.add(id(planned.step))
    assert len(steps) == 1


@pytest.mark.scripts
@pytest.mark.parametrize("what", ["object", "value"])
def test_calls_that_are_traced_time_and_again_are_warned_of_once(what: str) -> None:
    model, measure, x, share = encoder(), nn.MSELoss(), torch.randn(4, 8), 1.0

    def loss(x: Tensor) -> Tensor:
        return measure(model(x), x) * share

    options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False, "verify": False}
    planned = memplan.optimize(loss, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number in range(7):
            measure = nn.MSELoss() if what == "object" else measure
            share = share + (number % 2 if what == "value" else 0)
            planned(x).backward()
    lines = [str(each.message) for each in found if "had no plan" in str(each.message)]
    why = "another MSELoss object" if what == "object" else r"share is 4\.0; the plan is for 3\.0"
    assert len(lines) == 1, lines
    assert re.search(rf"^3 of the last {3 if what == 'object' else 5} calls .*{why}", lines[0]), lines


def test_a_call_that_reaches_another_module_says_so() -> None:
    """With steps that nobody plans."""
    holder, x = Holder(), torch.ones(4, 8)

    def loss(holder: Holder, x: Tensor) -> Tensor:
        return holder.net(x).square().mean()

    planned = PlannedFunction(loss, Options(budget="100%"), lambda *_given: cast(Step, object()))

    def call() -> None:
        holder.net = encoder()
        planned.planned((holder, x))

    for _call in range(3):
        call()
    with pytest.warns(UserWarning, match="the call reaches another Sequential object"):
        call()
