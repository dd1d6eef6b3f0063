"""Planned updates call the kernels that the optimizer itself calls: on CUDA each set rounds its own way.

The oracle is `torch.optim`, watched below autograd: the same operators, numbers and order. On the CPU the
bits are equal whichever kernels are called, so the calls are compared.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from memplan.updates import elementwise
from memplan.updates.catalogue import description, rules
from memplan.updates.elementwise import is_foreach
from not_none import not_none
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = 3


class Watch(TorchDispatchMode):
    """Operators on tensors that have dimensions, which step counts have not, with their numbers."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves):
            numbers = [leaf for leaf in leaves if isinstance(leaf, float)]
            self.calls.append((str(func), numbers))
        return func(*args, **(kwargs or {}))


def weight():
    return nn.Parameter(torch.linspace(-1, 1, 35).reshape(5, 7))


def gradients():
    return [torch.full((5, 7), 0.1 * (step + 1)) for step in range(STEPS)]


def of_optimizer(make):
    parameter = weight()
    optimizer = make([parameter])
    for gradient in gradients():
        parameter.grad = gradient
        watch = Watch()
        with watch:
            optimizer.step()
    return watch.calls


def of_plan(make):
    module = nn.Module()
    module.weight = weight()
    optimizer = make([module.weight])
    rule = rules(module, optimizer)["weight"]
    group = optimizer.param_groups[0]
    described = not_none(description(optimizer))
    values = described.values(group)
    numbers = {name: values[described.numbers.index(name)] for name in described.numbers}
    keywords = {name: numbers.get(name, value) for name, value in rule.keywords.items()}
    states = [torch.zeros(5, 7) for _ in rule.states]
    for step, gradient in enumerate(gradients(), 1):
        watch = Watch()
        with watch:
            rule.target(module.weight.detach(), gradient, *states, values[0], float(step), **keywords)
    return watch.calls


@some.composite
def optimizers(draw):
    common = {
        "weight_decay": draw(some.sampled_from([0.0, 0.1])),
        "maximize": draw(some.booleans()),
        "foreach": draw(some.booleans()),
    }
    kind = draw(some.sampled_from([torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD]))
    if kind is torch.optim.SGD:
        momentum = draw(some.sampled_from([0.0, 0.9]))
        common |= {"momentum": momentum, "nesterov": bool(momentum) and draw(some.booleans())}
    else:
        common["amsgrad"] = draw(some.booleans())
    return lambda parameters: kind(parameters, 0.01, **common)


VIEWS = ("detach", "alias", "view")


@settings(max_examples=60, deadline=None)
@given(optimizers())
def test_the_calls_are_those_of_torch_optim(make):
    def essence(calls):
        """Without views, factors of one, and whether the result is a new tensor: all have the same bits."""
        named = [
            (name.split(".")[1].rstrip("_").replace("clone", "copy"), [x for x in numbers if x != 1])
            for name, numbers in calls
        ]
        return [call for call in named if call[0] not in VIEWS]

    assert essence(of_plan(make)) == essence(of_optimizer(make))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"foreach": False}, False),
        ({"foreach": True}, True),
        ({"fused": True}, False),
        ({"fused": False}, False),
        ({"lr": torch.tensor(0.1)}, False),
    ],
    ids=str,
)
def test_the_default_of_a_device_with_kernels_for_lists(options, expected, monkeypatch):
    """As `torch.optim` chooses there; the CPU's own default is one tensor after the other."""
    optimizer = torch.optim.AdamW([weight()], **options)
    assert is_foreach(optimizer.param_groups[0]) == bool(options.get("foreach"))
    monkeypatch.setattr(elementwise, "takes_lists", lambda _parameters: True)
    assert is_foreach(optimizer.param_groups[0]) == expected
