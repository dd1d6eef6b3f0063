"""What a script can reassign between iterations: the step is bitwise eager PyTorch's, plans anew, or refuses.

A table of changes to module, parameters, groups, optimizer states and gradients, each with what becomes of a
step that has the optimizer, and of one whose loop has it. All cases share one plan of each kind: module and
optimizer are put back after each, objects and values. The oracle is an eager twin with the same change.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import memplan
import numpy as np
import pytest
import torch
from not_none import not_none
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two layers that share a weight, statistics, a layer of its own, one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(8)
        self.d = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return self.frozen(self.d(torch.tanh(self.c(inner)))).square().mean()


class Other(AdamW):
    """A user's optimizer."""


Change = Callable[[Any, Any], object]
EQUAL = ""
"""The step is as eager PyTorch; other words are those of its refusal."""

TIED, SHARED, GRAD = "are two now", "share memory otherwise", "grad is there"
STEP, FORM, KIND = "step was replaced", "in the optimizer; the plan is for", "which rounds otherwise"
GROUPS, UNEVEN = "other parameters than in the plan", "more often than others"
REPLACED = "was replaced; the optimizer has the one before"


def new(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach() * 1.5)


def state(optimizer: Any, parameter: Tensor) -> dict[str, Any]:
    return optimizer.state[parameter]


def setting(name: str, value: Any) -> Change:
    return lambda _net, optimizer: optimizer.param_groups[0].update({name: value})


def replaced(name: str, make: Callable[[Tensor], Any]) -> Change:
    """Replace a state of `d.weight`."""
    return lambda net, o: state(o, net.d.weight).update({name: make(state(o, net.d.weight)[name])})


def shared(name: str) -> Change:
    return lambda net, o: state(o, net.d.weight).update({name: state(o, net.c.weight)[name]})


def flattened(net: Any, _optimizer: Any) -> None:
    """Make the weights of two layers disjoint parts of one vector."""
    vector = torch.cat([net.c.weight.detach().flatten(), net.d.weight.detach().flatten()])
    net.c.weight.data, net.d.weight.data = vector[:64].view(8, 8), vector[64:].view(8, 8)


def overlapping(net: Any, _optimizer: Any) -> None:
    vector = torch.cat([net.c.weight.detach().flatten(), net.d.weight.detach().flatten()])
    net.c.weight.data, net.d.weight.data = vector[:64].view(8, 8), vector[8:72].view(8, 8)


def within_set(net: Any, _optimizer: Any) -> None:
    with torch.no_grad():
        net.d.weight.set_(net.c.weight.detach())


def penalty(net: Any, _optimizer: Any) -> None:
    (0.1 * net.d.weight.square().sum()).backward()


def own_step(_net: Any, optimizer: Any) -> None:
    optimizer.step = lambda closure=None: None


def wrapped_step(_net: Any, optimizer: Any) -> None:
    step = optimizer.step

    @functools.wraps(step)
    def twice(*arguments: Any, **keywords: Any) -> None:
        step(*arguments, **keywords)
        step(*arguments, **keywords)

    optimizer.step = twice


def scheduled(_net: Any, optimizer: Any) -> None:
    """A learning rate schedule replaces `step` too, and changes nothing that it does."""
    LambdaLR(optimizer, lambda _epoch: 0.5)


def loaded(net: Any, optimizer: Any) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def swapped_groups(_net: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["params"].reverse()


def moved_between_groups(_net: Any, optimizer: Any) -> None:
    first, second = optimizer.param_groups
    second["params"].append(first["params"].pop())


def added_group(_net: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def views_of_state(net: Any, optimizer: Any) -> None:
    """Moments of two weights as parts of one tensor, and one moment on the other."""
    rows = [state(optimizer, weight) for weight in (net.c.weight, net.d.weight)]
    both = torch.stack([row["exp_avg"] for row in rows])
    for row, part in zip(rows, both, strict=True):
        row["exp_avg"] = part


CHANGES: dict[str, tuple[Change, str, str]] = {
    # The module and its parameters.
    "nothing": (lambda _n, _o: None, EQUAL, EQUAL),
    "untied": (lambda n, _o: setattr(n.b, "weight", new(n.b.weight)), TIED, TIED),
    "untied, the first": (lambda n, _o: setattr(n.a, "weight", new(n.a.weight)), TIED, TIED),
    "tied": (lambda n, _o: setattr(n.c, "weight", n.d.weight), "are one tensor now", "are one tensor now"),
    "a new parameter": (lambda n, _o: setattr(n.c, "weight", new(n.c.weight)), REPLACED, EQUAL),
    "values in place": (lambda n, _o: n.c.weight.data.mul_(2), EQUAL, EQUAL),
    "new data": (lambda n, _o: setattr(n.c.weight, "data", n.c.weight.data * 2), EQUAL, EQUAL),
    "another's data": (lambda n, _o: setattr(n.c.weight, "data", n.d.weight.data), SHARED, EQUAL),
    "another's memory, by set_": (within_set, SHARED, EQUAL),
    "parts of one vector": (flattened, EQUAL, EQUAL),
    "parts that overlap": (overlapping, SHARED, EQUAL),
    "a bias in a weight": (lambda n, _o: setattr(n.c.bias, "data", n.d.weight.data[0]), SHARED, EQUAL),
    "a frozen one's data": (lambda n, _o: setattr(n.c.weight, "data", n.frozen.weight.data), SHARED, EQUAL),
    "transposed": (
        lambda n, _o: setattr(n.c.weight, "data", n.c.weight.data.t().contiguous().t()),
        "with strides",
        "with strides",
    ),
    "another dtype": (lambda n, _o: n.c.double(), "float64", "float64"),
    "statistics of its own": (
        lambda n, _o: setattr(n.norm, "running_mean", n.norm.running_mean + 1),
        EQUAL,
        EQUAL,
    ),
    "statistics that share": (
        lambda n, _o: setattr(n.norm.running_mean, "data", n.norm.running_var.data),
        SHARED,
        SHARED,
    ),
    "a buffer that is a weight": (
        lambda n, _o: setattr(n.norm, "running_mean", n.c.bias.data),
        SHARED,
        SHARED,
    ),
    "a layer replaced": (
        lambda n, _o: setattr(n, "c", copy.deepcopy(n.c)),
        "submodules changed",
        "submodules",
    ),
    "a hook of a weight": (
        lambda n, _o: n.c.weight.register_hook(lambda g: 2 * g),
        "has a hook on its gradient",
        "has a hook on its gradient",
    ),
    "eval mode": (lambda n, _o: n.eval(), "call model.train", "call model.train"),
    "loaded": (loaded, EQUAL, EQUAL),
    # Gradients.
    "a gradient": (penalty, GRAD, EQUAL),
    "a gradient of zeros": (
        lambda n, _o: setattr(n.c.weight, "grad", torch.zeros_like(n.c.weight)),
        GRAD,
        EQUAL,
    ),
    "a frozen one's gradient": (
        lambda n, _o: setattr(n.frozen.weight, "grad", torch.ones(8, 8)),
        GRAD,
        EQUAL,
    ),
    # Groups.
    "rate": (setting("lr", 0.5), EQUAL, EQUAL),
    "rate 0": (setting("lr", 0), EQUAL, EQUAL),
    "rate, whole": (setting("lr", 1), EQUAL, EQUAL),
    "rate, NumPy's double": (setting("lr", np.float64(0.3)), EQUAL, EQUAL),
    "rate, NumPy's single": (setting("lr", np.float32(0.3)), KIND, EQUAL),
    "rate, NumPy's half": (setting("lr", np.float16(0.3)), KIND, EQUAL),
    "rate, a fraction": (setting("lr", Fraction(1, 3)), KIND, EQUAL),
    "rate, a tensor": (setting("lr", torch.tensor(0.3)), "lr is a tensor", EQUAL),
    "betas": (setting("betas", (0.5, 0.7)), EQUAL, EQUAL),
    "betas, a list": (setting("betas", [0.5, 0.7]), EQUAL, EQUAL),
    "betas, NumPy's": (setting("betas", (np.float32(0.5), np.float32(0.7))), KIND, EQUAL),
    "eps": (setting("eps", 0.1), EQUAL, EQUAL),
    "eps, a tensor": (setting("eps", torch.tensor(0.1)), KIND, EQUAL),
    "decay": (setting("weight_decay", 0.3), EQUAL, EQUAL),
    "decay, NumPy's": (setting("weight_decay", np.float32(0.3)), KIND, EQUAL),
    "no decay": (setting("weight_decay", 0.0), "weight_decay is 0.0", EQUAL),
    "amsgrad": (setting("amsgrad", True), "amsgrad is True", EQUAL),
    "maximize": (setting("maximize", True), "maximize is True", EQUAL),
    "foreach": (setting("foreach", True), "foreach is True", EQUAL),
    "capturable": (setting("capturable", True), "capturable is True", EQUAL),
    "differentiable": (setting("differentiable", True), "differentiable is True", EQUAL),
    "fused": (setting("fused", True), "fused is True", EQUAL),
    "coupled decay": (setting("decoupled_weight_decay", False), "decoupled_weight_decay is False", EQUAL),
    "another order": (swapped_groups, GROUPS, EQUAL),
    "another group": (moved_between_groups, GROUPS, EQUAL),
    "a group more": (added_group, "has 3 groups", EQUAL),
    "a group less": (lambda _n, o: o.param_groups.pop(), "has 1 groups", EQUAL),
    "groups replaced": (
        lambda _n, o: setattr(o, "param_groups", [{**group} for group in o.param_groups]),
        EQUAL,
        EQUAL,
    ),
    # States.
    "no states": (lambda _n, o: o.state.clear(), EQUAL, EQUAL),
    "no state of one": (lambda n, o: o.state.pop(n.d.weight), UNEVEN, EQUAL),
    "a state replaced": (replaced("exp_avg", lambda x: 2 * x), EQUAL, EQUAL),
    "a state in place": (lambda n, o: state(o, n.d.weight)["exp_avg"].mul_(2), EQUAL, EQUAL),
    "a state of doubles": (replaced("exp_avg", lambda x: x.double()), FORM, EQUAL),
    "a state of another shape": (replaced("exp_avg", lambda x: x[None]), FORM, EQUAL),
    "a state transposed": (replaced("exp_avg", lambda x: x.t().contiguous().t()), EQUAL, EQUAL),
    "one state for two": (shared("exp_avg"), SHARED, EQUAL),
    "one state for two kinds": (
        lambda n, o: state(o, n.d.weight).update(exp_avg=state(o, n.d.weight)["exp_avg_sq"]),
        SHARED,
        EQUAL,
    ),
    "a weight as state": (
        lambda n, o: state(o, n.d.weight).update(exp_avg=n.c.weight.detach()),
        SHARED,
        EQUAL,
    ),
    "states that are parts of one": (views_of_state, EQUAL, EQUAL),
    "one count for two": (shared("step"), "share one step count", EQUAL),
    "another count": (replaced("step", lambda x: x + 3), UNEVEN, EQUAL),
    "counts replaced": (
        lambda _n, o: [row.update(step=row["step"] + 5) for row in o.state.values()],
        EQUAL,
        EQUAL,
    ),
    "a count that is a number": (replaced("step", float), "step count of the optimizer is no tensor", EQUAL),
    "a state more": (lambda n, o: state(o, n.d.weight).update(more=torch.ones(3)), EQUAL, EQUAL),
    # The optimizer.
    "step replaced": (own_step, STEP, EQUAL),
    "step wrapped": (wrapped_step, STEP, EQUAL),
    "step by a schedule": (scheduled, EQUAL, EQUAL),
    "another class": (lambda _n, o: setattr(o, "__class__", Other), "is a Other now", EQUAL),
    "a hook of steps": (
        lambda _n, o: o.register_step_pre_hook(lambda *_, **_named: None),
        "hook on its steps",
        EQUAL,
    ),
    "zero_grad replaced": (lambda _n, o: setattr(o, "zero_grad", nn.Module().zero_grad), EQUAL, EQUAL),
}


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


class Training:
    """A module with its optimizer, and their state, objects and values, to which they can be put back."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        weights = [each for each in self.net.parameters() if each.dim() == 2]
        others = [each for each in self.net.parameters() if each.dim() == 1]
        self.optimizer: Any = AdamW([{"params": weights}, {"params": others}], lr=0.1, foreach=False)
        self._parts = [(part, vars(part).copy()) for part in self.net.modules()]
        self._registers = [
            (vars(part), name, vars(part)[name].copy())
            for part in self.net.modules()
            for name in ("_parameters", "_buffers", "_modules")
        ]
        self._tensors = [
            (each, each.data, each.detach().clone(), each.requires_grad)
            for each in (*self.net.parameters(), *self.net.buffers())
        ]
        self._groups = [{**group, "params": [*group["params"]]} for group in self.optimizer.param_groups]
        self._own = {name: value for name, value in vars(self.optimizer).items() if name != "param_groups"}

    def put_back(self) -> None:
        for part, own in self._parts:
            vars(part).clear()
            vars(part).update(own)
        for own, name, register in self._registers:
            own[name].clear()
            own[name].update(register)
        for tensor, data, values, trained in self._tensors:
            tensor.grad, tensor._backward_hooks = None, None
            tensor.data = data.copy_(values)
            tensor.requires_grad_(trained)
        self.optimizer.__class__ = AdamW
        vars(self.optimizer).clear()
        vars(self.optimizer).update(self._own)
        self.optimizer.param_groups = [{**group, "params": [*group["params"]]} for group in self._groups]
        self.optimizer.state.clear()
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            kept = {key: hook for key, hook in self._own[hooks].items() if hook.__module__ != __name__}
            self._own[hooks].clear()
            self._own[hooks].update(kept)

    def everything(self) -> dict[str, Tensor]:
        rows = {
            f"{name}.{key}": value
            for name, each in self.net.named_parameters()
            for key, value in self.optimizer.state.get(each, {}).items()
        }
        return {**self.net.state_dict(), **{k: torch.as_tensor(v) for k, v in rows.items()}}


class Twins:
    """A planned training and an eager one.

    within: whether the step has the optimizer.
    """

    def __init__(self, *, within: bool) -> None:
        self.planned, self.eager, self._within = Training(), Training(), within
        options: dict[str, Any] = {"optimizer": self.planned.optimizer} if within else {}
        options |= {"budget": "100%", "solver": "store-all", "cache": False, "verify": False}
        self.step: Any = memplan.optimize(self.planned.net, X, **options)

    def _iterate(self, training: Training, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        loss = loss_of(X)
        if not (self._within and training is self.planned):
            loss.backward()
            training.optimizer.step()
            AdamW.zero_grad(training.optimizer)
        return loss.detach()

    def trained(self, change: Change) -> str:
        """Return the refusal of the step, "" if it trains as eager PyTorch does, or what differs."""
        for each in (self.planned, self.eager):
            each.put_back()
        for turn in range(5):
            if turn == 2:
                change(self.planned.net, self.planned.optimizer)
                change(self.eager.net, self.eager.optimizer)
            expected, error = None, None
            try:
                expected = self._iterate(self.eager, self.eager.net)
            except Exception as raised:
                error = raised
            try:
                found = self._iterate(self.planned, self.step)
            except memplan.MemplanError as refusal:
                return str(refusal)
            except Exception:
                if error is None:
                    raise
                return EQUAL
            assert error is None, f"eager PyTorch raises {error}"
            assert expected is not None
            assert same(found, expected), f"the loss of iteration {turn}"
        own, others = self.planned.everything(), self.eager.everything()
        assert own.keys() == others.keys()
        for name, tensor in others.items():
            assert same(own[name], tensor), name
        return EQUAL


@pytest.fixture(scope="module")
def twins() -> dict[bool, Twins]:
    return {within: Twins(within=within) for within in (True, False)}


@pytest.mark.sampled(19)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("within", [True, False], ids=["in the step", "in the loop"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_followed_or_refused(name: str, within: bool, twins: dict[bool, Twins]) -> None:
    change, *expected = CHANGES[name]
    wanted = expected[not within]
    found = twins[within].trained(change)
    assert wanted in found if wanted else not found, found
    assert len(found.splitlines()) <= 1


class Doubling(TorchFunctionMode):
    """A mode in which every `tanh` is twice what it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return 2 * made if func is torch.tanh else made


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


SURROUNDINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "a function mode": (Doubling, "called within a Doubling, a mode"),
    "a dispatch mode": (Passing, "called within a Passing, a mode"),
    "hooks that change values": (
        lambda: saved_tensors_hooks(Tensor.half, Tensor.float),
        "saved_tensors_hooks",
    ),
    "hooks that don't": (lambda: saved_tensors_hooks(lambda x: x, lambda x: x), EQUAL),
    "save_on_cpu": (save_on_cpu, EQUAL),
    "a device": (lambda: torch.device("cpu"), EQUAL),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_is_around_a_step_is_followed_or_refused(name: str, twins: dict[bool, Twins]) -> None:
    made, wanted = SURROUNDINGS[name]
    pair = twins[False]
    for each in (pair.planned, pair.eager):
        each.put_back()
    with made():
        if wanted:
            with pytest.raises(memplan.MismatchError, match=wanted):
                pair.step(X)
            return
        pair.step(X).backward()
        pair.eager.net(X).backward()
    for own, other in zip(pair.planned.net.parameters(), pair.eager.net.parameters(), strict=True):
        assert own.grad is other.grad or torch.equal(not_none(own.grad), not_none(other.grad))


@pytest.mark.filterwarnings("ignore")
def test_a_batch_in_a_weight_is_refused(twins: dict[bool, Twins]) -> None:
    pair = twins[True]
    pair.planned.put_back()
    with pytest.raises(
        memplan.MismatchError, match=r"input 0 shares memory with c.weight, .* give its clone"
    ):
        pair.step(pair.planned.net.c.weight.detach()[:4])
    pair.step(pair.planned.net.c.weight.detach()[:4].clone())


@pytest.mark.filterwarnings("ignore")
def test_a_hook_on_the_steps_of_all_optimizers_is_refused(twins: dict[bool, Twins]) -> None:
    pair = twins[True]
    pair.planned.put_back()
    handle = register_optimizer_step_post_hook(lambda *_given, **_named: None)
    try:
        with pytest.raises(memplan.MemplanError, match="the optimizer has a hook on its steps"):
            pair.step(X)
    finally:
        handle.remove()
    pair.step(X)
