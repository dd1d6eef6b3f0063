"""A batch's tensors as objects: attributes that the user puts on them, and which of them are one.

The oracle is eager PyTorch with the same batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
OPTIONS: dict[str, Any] = {"budget": "100%", "solver": "store-all", "verify": False, "cache": False}


class Model(nn.Module):
    held: Any
    which: Any
    number: int
    numbers: set[int]
    table: dict[int, float]

    def __init__(self, read: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.read = read

    def forward(self, *batch: Tensor) -> Tensor:
        return (self.layer(batch[0]) * self.read(*batch)).square().mean()


def carrying(**attributes: Any) -> Tensor:
    made = torch.randn(4, 3)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def planned(module: nn.Module, *batch: Tensor) -> Any:
    return memplan.optimize(module, batch, **OPTIONS)


READS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda x: x.w if hasattr(x, "w") else 1.0,
    "default": lambda x: getattr(x, "w", 1.0),
}


@pytest.mark.scripts
@pytest.mark.parametrize("name", ["attribute", "default"])
@pytest.mark.parametrize("first", [{}, {"w": 1.0}])
def test_an_attribute_of_a_batch(name: str, first: dict[str, Any]) -> None:
    """Present, absent at first, changed: a plan for each value."""
    module = Model(READS[name])
    step = planned(module, carrying(**first))
    for attributes in (first, {"w": 2.0}, {}, {"w": 2.0}, {"other": 1}):
        x = carrying(**attributes)
        assert torch.equal(step(x).detach(), module(x))
    assert len(step.plans) == 2 + (first != {})


@pytest.mark.scripts
def test_a_list_that_a_batch_carries() -> None:
    module = Model(lambda x: sum(x.w))
    step = planned(module, carrying(w=[1.0, 2.0]))
    for w in ([1.0, 2.0], [1.0, 3.0]):
        x = carrying(w=w)
        assert torch.equal(step(x).detach(), module(x))


@pytest.mark.scripts
def test_what_the_iteration_itself_puts_there() -> None:
    def read(x: Any) -> float:
        x.seen = 2.0
        return x.seen

    module = Model(read)
    step = planned(module, carrying())
    for attributes in ({}, {"seen": 3.0}):
        x = carrying(**attributes)
        assert torch.equal(step(x).detach(), module(x))
    assert len(step.plans) == 1


@pytest.mark.scripts
def test_what_nothing_reads_may_be_there() -> None:
    module = Model(lambda _x: 1.0)
    step = planned(module, carrying(number=0))
    for number in range(3):
        step(carrying(number=number))
    assert len(step.plans) == 1


@pytest.mark.scripts
def test_a_tensor_that_a_batch_carries_is_refused_by_name() -> None:
    with pytest.raises(
        memplan.MemplanError, match=r"py:\d+: reads w, a tensor .* the input 0, .* of its own"
    ):
        planned(Model(lambda x: x.w), carrying(w=torch.ones(3)))
    module, x, w = Model(lambda _x, w: w), carrying(), torch.rand(3)  # the way out
    assert torch.equal(planned(module, x, w)(x, w).detach(), module(x, w))


def test_all_that_a_batch_carries_is_refused() -> None:
    with pytest.raises(memplan.MemplanError, match=r"reads all attributes of the tensor 0: read each"):
        planned(Model(lambda x: len(vars(x)) + 1.0), carrying())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("which", [lambda m, x: x, lambda m, x: m.layer.weight])
def test_how_often_a_tensor_has_changed_is_refused(which: Any) -> None:
    module = Model(lambda x: 1.0 + which(module, x)._version)
    with pytest.raises(memplan.MemplanError, match=r"py:\d+: reads _version of .* Count in a buffer"):
        planned(module, carrying())


IDENTITIES: dict[str, Callable[..., Any]] = {
    "is": lambda x, y, z: 2.0 if x is y else 1.0,
    "is not": lambda x, y, z: 1.0 if z is not x else 3.0,
    "id": lambda x, y, z: 2.0 if id(x) == id(y) else 1.0,
    "any": lambda x, y, z: 1.0 + sum(x is each for each in (y, z)),
}


@pytest.mark.scripts
@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("pattern", ["abc", "aaa"])
def test_inputs_that_are_one_object(name: str, pattern: str) -> None:
    """Each pattern first, then the others."""
    tensors = {letter: carrying() for letter in "abc"}
    module = Model(IDENTITIES[name])
    step = planned(module, *(tensors[letter] for letter in pattern))
    for other in (pattern, "abc", "aab", "aaa"):
        batch = [tensors[letter] for letter in other]
        assert torch.equal(step(*batch).detach(), module(*batch))


@pytest.mark.scripts
def test_inputs_whose_identity_nothing_asks_for() -> None:
    module = Model(lambda x, y: 1.0 if y is None else 2.0)
    x, y = carrying(), carrying()
    step = planned(module, x, x)
    for batch in ((x, y), (x, x), (y, y)):
        assert torch.equal(step(*batch).detach(), module(*batch))
    assert len(step.plans) == 1


def test_numbers_written_into_a_tensor_s_memory_are_refused() -> None:
    """In eager PyTorch they stay in the attribute."""

    def read(_x: Tensor) -> float:
        numbers = module.held.numpy()
        numbers[0] += 1
        return float(numbers[0])

    module = Model(read)
    module.held = torch.ones(1)
    with pytest.raises(memplan.MemplanError, match=r"test_batch_objects_of_tensors\.py:\d+: .*read-only"):
        planned(module, carrying())


@pytest.mark.scripts
def test_columns_that_a_tensor_names() -> None:
    """As pytorch_tabnet's embeddings: a loop over a tensor of bits in an attribute."""

    def read(x: Tensor) -> Tensor:
        columns = [x[:, i] if each else x[:, i].square() for i, each in enumerate(module.which)]
        return torch.stack(columns, 1)

    module = Model(read)
    module.which = torch.tensor([True, False, True])
    x = carrying()
    step = planned(module, x)
    for which in ([True, False, True], [False, False, True]):
        module.which = torch.tensor(which)
        assert torch.equal(step(x).detach(), module(x))


HELD: dict[str, Callable[[Any, Tensor], float]] = {
    "is": lambda module, x: 2.0 if x is module.held else 1.0 if module.held is not x else 0.0,
    "id": lambda module, x: 2.0 if id(x) == id(module.held) else 1.0 if id(module.held) != id(x) else 0.0,
    "in a chain": lambda module, x: 2.0 if x is module.held is x else 1.0,
}


@pytest.mark.scripts
@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("buffer", [False, True])
def test_an_input_that_an_attribute_holds(name: str, buffer: bool) -> None:
    module = Model(lambda x: HELD[name](module, x))
    x, other = carrying(), carrying()
    if buffer:
        module.register_buffer("held", None)
    module.held = x
    step = planned(module, other)
    for batch in (other, x, other):
        assert torch.equal(step(batch).detach(), module(batch))
    module.held = other
    assert torch.equal(step(other).detach(), module(other))


@pytest.mark.scripts
def test_a_weight_that_an_attribute_holds() -> None:
    """Outside of the registers, as itself."""
    module = Model(lambda _x: 2.0 if module.held[0] is module.layer.weight else 1.0)
    x, other = carrying(), nn.Parameter(torch.zeros(3))
    module.held = [other]
    step = planned(module, x)
    for held in (other, module.layer.weight, other):
        module.held = [held]
        assert torch.equal(step(x).detach(), module(x))


NUMBERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "compared": lambda module, x: 2.0 if id(x) == module.number else 1.0,
    "in a set": lambda module, x: 2.0 if id(x) in module.numbers else 1.0,
    "a key": lambda module, x: module.table[id(x)],
    "got": lambda module, x: module.table.get(id(x), 1.0),
    "counted with": lambda module, x: 2.0 if (id(x) + 1) % 2 else 1.0,
    "in a text": lambda module, x: 2.0 if f"{id(x)}" == str(module.number) else 1.0,
    "ordered": lambda module, x: 2.0 if id(x) > module.number else 1.0,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NUMBERS)
def test_the_number_of_an_input_is_refused(name: str) -> None:
    module, x = Model(lambda x: NUMBERS[name](module, x)), carrying()
    module.number, module.numbers, module.table = id(x), {id(x)}, {id(x): 2.0}
    with pytest.raises(memplan.MemplanError, match=r"py:\d+: uses id\(\) of the input 0 .* by `is`"):
        planned(module, x)


@pytest.mark.scripts
def test_the_number_of_an_input_within_an_iteration() -> None:
    def read(x: Tensor, y: Tensor) -> float:
        seen = {id(x): 2.0}
        return seen.get(id(y), 1.0)

    x, y = carrying(), carrying()
    module = Model(read)
    step = planned(module, x, y)
    for batch in ((x, y), (x, x), (y, y)):
        assert torch.equal(step(*batch).detach(), module(*batch))
