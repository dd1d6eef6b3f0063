"""Guards in one pass: random changes of a module, each noticed when the complete check notices it.

The oracle: guards that have never been used. They have noted nothing, so their check is the complete one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from memplan.graphs.errors import MemplanError
from memplan.guards.guards import Guards
from memplan.model.iteration import Iteration, Updates
from memplan.planner.baseline import baseline_schedule
from memplan.runtime.run.owners import Owners
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from torch import Tensor, nn
from transfers import unmeasured


class Net(nn.Module):
    """Layers within layers, buffers, a missing parameter, a module that the user's class gives attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 4), nn.Dropout(0.2), nn.Sequential(nn.Linear(4, 4, bias=False))
        )
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x))).square().mean()


class OtherLinear(nn.Linear):
    pass


Change = Callable[[random.Random, Net], Any]


def some_module(rng: random.Random, net: Net) -> Any:
    return rng.choice([*net.modules()])


def some_tensor(rng: random.Random, net: Net) -> Any:
    return rng.choice([*net.parameters(), *net.buffers()])


def owner_of_tensor(rng: random.Random, net: Net) -> tuple[Any, str]:
    return rng.choice([(part, name) for part in net.modules() for name in part._parameters])


def replace(rng: random.Random, net: Net) -> None:
    part, name = owner_of_tensor(rng, net)
    there = part._parameters[name]
    made = torch.ones(4, 4) if there is None else there.detach().clone()
    kinds = [made, made.double(), made.t() if made.dim() > 1 else made[:2], None]
    chosen = rng.choice([made, *kinds])
    setattr(part, name, None if chosen is None else nn.Parameter(chosen, rng.random() < 0.9))


def in_place(rng: random.Random, net: Net) -> None:
    tensor = some_tensor(rng, net)
    with torch.no_grad():
        tensor.add_(1)


def data(rng: random.Random, net: Net) -> None:
    tensor = some_tensor(rng, net)
    other = tensor.detach().clone()
    tensor.data = rng.choice([other, other.double() if other.is_floating_point() else other[None], other.t()])


def hook(rng: random.Random, net: Net) -> None:
    part = some_module(rng, net)
    register = rng.choice(
        [part.register_forward_hook, part.register_forward_pre_hook, part.register_full_backward_hook]
    )
    handle = register(lambda *_given, **_named: None)
    if rng.random() < 0.5:
        handle.remove()


def tensor_hook(rng: random.Random, net: Net) -> None:
    tensor = rng.choice([*net.parameters()])
    if tensor.requires_grad:
        handle = rng.choice([tensor.register_hook, tensor.register_post_accumulate_grad_hook])(
            lambda *_g: None
        )
        if rng.random() < 0.5:
            handle.remove()


def submodule(rng: random.Random, net: Net) -> None:
    part = some_module(rng, net)
    if part._modules:
        name = rng.choice([*part._modules])
        setattr(part, name, rng.choice([nn.Linear(4, 4), part._modules[name], nn.Dropout(0.2)]))


def attribute(rng: random.Random, net: Net) -> None:
    part = some_module(rng, net)
    name = rng.choice(["p", "eps", "momentum", "in_features", "inplace", "extra", "scale", "training"])
    if rng.random() < 0.3:
        vars(part).pop(name, None) if name != "training" else None
    else:
        setattr(part, name, rng.choice([getattr(part, name, 1.0), float("0.2"), 3, True, "word", [1]]))


def kind(rng: random.Random, net: Net) -> None:
    part = rng.choice([each for each in net.modules() if isinstance(each, nn.Linear)])
    part.__class__ = rng.choice([nn.Linear, OtherLinear])


def forward(rng: random.Random, net: Net) -> None:
    part = some_module(rng, net)
    if rng.random() < 0.5:
        part.forward = rng.choice([part.forward, lambda x: x])
    else:
        vars(part).pop("forward", None)


def hidden(rng: random.Random, net: Net) -> None:
    """A tensor in the instance's own attributes, which Python finds before the parameter."""
    part, name = owner_of_tensor(rng, net)
    there = part._parameters[name]
    if there is not None:
        vars(part)[name] = rng.choice([there, torch.ones(5), nn.Parameter(torch.ones(2, 2))])


def shown(rng: random.Random, net: Net) -> None:
    part, name = owner_of_tensor(rng, net)
    vars(part).pop(name, None)


def removed(rng: random.Random, net: Net) -> None:
    part, name = owner_of_tensor(rng, net)
    there = part._parameters.pop(name)
    if rng.random() < 0.7:
        part._parameters[name] = there


def register(rng: random.Random, net: Net) -> None:
    """A register replaced by an equal one, and one with a buffer more."""
    part = some_module(rng, net)
    part._parameters = dict(part._parameters)
    if rng.random() < 0.3:
        part.register_buffer("more", rng.choice([None, torch.ones(1)]))


def tied(rng: random.Random, net: Net) -> None:
    """The weight of two layers."""
    weights = [each.get("weight") for each in (net.head._parameters, net.body[0]._parameters)]
    net.head._parameters["weight"] = rng.choice([*weights, nn.Parameter(torch.ones(4, 4))])


CHANGES: list[Change] = [
    *(in_place,) * 6,
    replace,
    data,
    hook,
    tensor_hook,
    submodule,
    attribute,
    kind,
    forward,
    hidden,
    shown,
    removed,
    register,
    tied,
    lambda rng, net: some_module(rng, net).train(rng.random() < 0.7),
    lambda rng, net: rng.choice([*net.parameters()]).requires_grad_(rng.random() < 0.7),
    lambda rng, _net: torch.set_default_dtype(rng.choice([torch.float32, torch.float64])),
]


@pytest.fixture(autouse=True)
def _default_dtype() -> Any:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def outcome(guards: Guards, read: Callable[[], dict[str, Tensor]]) -> Any:
    """What a check says: the tensors, or the error; and the attributes."""
    said = guards.other_values({})
    try:
        return said, {name: id(tensor) for name, tensor in guards.check(read).items()}
    except Exception as error:
        return said, type(error), str(error)


CHECKS = 12


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(150))
def test_random_changes_are_noticed_as_by_the_complete_check(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(0)
    iteration = Iteration(Net(), (torch.ones(3, 4),))
    program = trace(iteration)
    owners = Owners(iteration.module, program, None)
    used, *unused = (Guards(iteration, program, owners.places) for _ in range(CHECKS + 1))
    change: Any = in_place
    for number, complete in enumerate(unused):
        assert outcome(used, owners.tensors) == outcome(complete, owners.tensors), (number, change)
        for _ in range(rng.choice([0, 1, 1, 2])):
            change = rng.choice(CHANGES)
            change(rng, iteration.module)


def planned() -> tuple[Any, PlannedStep]:
    torch.manual_seed(0)
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    iteration = Iteration(module, (torch.ones(3, 4),), updates=Updates(optimizer))
    program = trace(iteration)
    return module, PlannedStep(iteration, program, baseline_schedule(unmeasured(program)))


def complete_checks(step: PlannedStep, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each complete check."""
    found: list[int] = []
    check = Guards.check_module

    def counted(self: Guards, tensors: Any) -> None:
        found.append(1)
        check(self, tensors)

    monkeypatch.setattr(Guards, "check_module", counted)
    return found


def test_what_stays_is_not_checked_completely_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training changes values alone, however: in place, or all parameters replaced by equal ones."""
    module, step = planned()
    found = complete_checks(step, monkeypatch)
    for _ in range(3):
        step.run((torch.randn(3, 4),))
    assert len(found) == 1
    module.load_state_dict({name: tensor.clone() for name, tensor in module.state_dict().items()})
    step.run((torch.randn(3, 4),))
    assert len(found) == 1
    handle = module.head.register_forward_hook(lambda *_given, **_named: None)
    with pytest.raises(MemplanError, match="head: its hooks changed"):
        step.run((torch.randn(3, 4),))
    handle.remove()
    for _ in range(2):
        step.run((torch.randn(3, 4),))
    assert len(found) == 3


def test_a_replaced_parameter_is_not_kept() -> None:
    """Of two weights one is freed at once: not only with the next iteration."""
    module, step = planned()
    step.run((torch.randn(3, 4),))
    freed: list[int] = []

    class Weight(nn.Parameter):
        def __del__(self) -> None:
            freed.append(1)

    module.body[0].weight = Weight(torch.ones(4, 4))
    with pytest.raises(MemplanError, match="was replaced"):
        step.run((torch.randn(3, 4),))
    module.body[0].weight = nn.Parameter(torch.ones(4, 4))
    assert freed
