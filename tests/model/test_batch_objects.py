"""Batches that are objects: each tensor in them is an input, each number a value that a plan holds for."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@dataclass
class Data:
    x: Tensor
    scale: float = 1.0
    more: Any = None


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    scale: float = 1.0


class Holder:
    def __init__(self, x: Tensor, scale: float = 1.0) -> None:
        self.x, self.scale = x, scale

    def to(self, _device: object) -> Holder:
        return self


class Slotted:
    __slots__ = ("scale", "x")

    def __init__(self, x: Tensor, scale: float = 1.0) -> None:
        self.x, self.scale = x, scale


class Registered:
    """Its tensor is found by what it is registered with alone."""

    def __init__(self, x: Tensor, scale: float = 1.0) -> None:
        self.inner = (lambda: x, scale)

    x = property(lambda self: self.inner[0]())
    scale = property(lambda self: self.inner[1])


_pytree.register_pytree_node(
    Registered,
    lambda each: ([each.x], each.scale),
    lambda children, scale: Registered(*children, scale=scale),
)


class Keyed:
    """As PyTorch Geometric's Data: keys, items and a store that attributes are looked up in."""

    def __init__(self, x: Tensor, scale: float = 1.0) -> None:
        self.__dict__["_store"] = {"x": x, "scale": scale}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_store"][name]
        except KeyError:
            raise AttributeError(name) from None

    def keys(self) -> list[str]:
        return list(self._store)

    def __getitem__(self, key: str) -> Any:
        return self._store[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._store[key] = value

    def __copy__(self) -> Keyed:
        return Keyed(**self._store)


class Kinds:
    """As its HeteroData: a store per kind of node, where `data[key]` makes one that is not there."""

    def __init__(self, x: Tensor, scale: float = 1.0) -> None:
        self.stores: list[dict[str, Any]] = [{"scale": scale}, {"x": x}, {"x": x + 1}]
        self.node_types = ["papers", "authors"]

    @property
    def x(self) -> Tensor:
        return self["papers"]["x"] + self["authors"]["x"].sin()

    @property
    def scale(self) -> float:
        return self.stores[0]["scale"]

    def keys(self) -> list[str]:
        return ["scale", "x"]

    def __getitem__(self, key: str) -> dict[str, Any]:
        if key not in self.node_types:
            self.node_types.append(key)
            self.stores.append({})
        return self.stores[1 + self.node_types.index(key)]

    def __setitem__(self, key: str, value: Any) -> None:
        raise AttributeError(key)

    def __copy__(self) -> Kinds:
        made = Kinds(self.stores[1]["x"])
        made.stores = [dict(each) for each in self.stores]
        made.node_types = list(self.node_types)
        return made


Row = namedtuple("Row", ("x", "scale"), defaults=(1.0,))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, data: Any) -> Tensor:
        return (self.layer(data.x) * data.scale).square().mean()


KINDS = [Data, Frozen, Holder, Slotted, Registered, Keyed, Kinds, Row]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_batch_of_each_kind(kind: Any) -> None:
    """Other values, another shape, another number: each loss is eager PyTorch's."""
    torch.manual_seed(0)
    module = Model()
    first = kind(torch.randn(4, 3))
    step = memplan.optimize(module, (first,), budget="100%", solver="store-all", verify=True, cache=False)
    for batch in (first, kind(torch.randn(4, 3)), kind(torch.randn(2, 3)), kind(torch.randn(4, 3), 3.0)):
        kept = copy.deepcopy(batch.x)
        assert torch.equal(step(batch).detach(), module(batch))
        assert torch.equal(batch.x, kept)
    assert len(step.plans) == 3


def test_a_graph_of_several_kinds_gets_no_other() -> None:
    data = Kinds(torch.randn(4, 3))
    step = memplan.optimize(Model(), (data,), budget="100%", solver="store-all", cache=False)
    step(data)
    assert data.node_types == ["papers", "authors"]


def test_an_object_is_given_as_it_is() -> None:
    module, data = Model(), Data(torch.randn(4, 3))
    step = memplan.optimize(module, data, budget="100%", solver="store-all", verify=False, cache=False)
    assert torch.equal(step(data).detach(), module(data))


@pytest.mark.scripts
def test_tensors_deeper_inside() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, data: Any, more: Any) -> Tensor:
            return (self.layer(data.more["inner"].x) * more[0].x.sum()).square().mean()

    torch.manual_seed(0)
    module = Deep()
    batches = [
        (Data(torch.ones(1), more={"inner": Holder(torch.randn(4, 3))}), [Data(torch.randn(2))]) for _ in "ab"
    ]
    step = memplan.optimize(module, batches[0], budget="100%", solver="store-all", verify=False, cache=False)
    for batch in batches:
        assert torch.equal(step(*batch).detach(), module(*batch))
    assert len(step.plans) == 1


@pytest.mark.scripts
def test_an_integer_that_changes_has_a_plan_for_each_value() -> None:
    class Power(Model):
        def forward(self, x: Tensor, n: int) -> Tensor:
            return self.layer(x).pow(n).mean()

    torch.manual_seed(0)
    module, x = Power(), torch.randn(4, 3)
    step = memplan.optimize(
        module, (x, 2), budget="100%", solver="store-all", verify=False, cache=False, max_plans=2
    )
    with pytest.warns(UserWarning, match=r"input 1 is 3; the plan is for 2; another plan is made"):
        step(x, 3)
    for n in (2, 3, 2, 4, 3):
        assert torch.equal(step(x, n).detach(), module(x, n))
    assert len(step.plans) == 2


def test_an_object_that_can_not_be_taken_apart_is_named() -> None:
    class Hidden:
        def __init__(self, x: Tensor) -> None:
            self.get, self.scale = (lambda: x), 1.0

        x = property(lambda self: self.get())

    batch = (Hidden(torch.randn(4, 3)),)
    with pytest.raises(memplan.MemplanError, match="the input 0 is a Hidden, which can't be taken apart"):
        memplan.optimize(Model(), batch, budget="100%", verify=False, cache=False)
