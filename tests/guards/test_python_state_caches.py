"""Tensors in functools' caches are forgotten around a model's code, however little is looked at anew."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from memplan.guards.cached_results import caches_forgotten
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def sizes(*cached: Any) -> list[int]:
    with caches_forgotten():
        return [each.cache_info().currsize for each in cached]


@pytest.mark.parametrize("most", [None, 8])
def test_tensors_are_forgotten_and_all_else_stays(most: int | None) -> None:
    plain = functools.lru_cache(most)(lambda number: (number, "text"))
    table = functools.lru_cache(most)(lambda number: (number, {"rows": [torch.zeros(number)]}))
    plain(1)
    table(1)
    assert sizes(plain, table) == [1, 0]
    assert sizes(plain, table) == [1, 0]
    table(2)
    assert sizes(plain, table) == [1, 0]


def test_what_comes_into_a_container_later_is_seen() -> None:
    """The cache itself has not changed since it was looked at."""
    rows: dict[str, Any] = {"rows": ()}
    registry = functools.cache(lambda: rows)
    registry()
    assert sizes(registry) == [1]
    rows["rows"] = (torch.zeros(2),)
    assert sizes(registry) == [0]


def test_a_cache_that_was_cleared_is_looked_at_anew() -> None:
    found: list[Any] = [1, torch.zeros(2)]
    latest = functools.cache(lambda: found[0])
    latest()
    latest()
    assert sizes(latest) == [1]
    latest.cache_clear()
    found.reverse()
    latest()
    assert sizes(latest) == [0]


def test_a_cache_that_is_used_much_is_looked_at_after_a_miss_alone() -> None:
    many = functools.lru_cache(None)(lambda number: torch.zeros(1) if number == 99 else number)
    for number in range(30):
        many(number)
    assert sizes(many) == [30]
    many(3)
    assert sizes(many) == [30]
    many(99)
    assert sizes(many) == [0]


class Table:
    def __init__(self, number: int) -> None:
        self.rows = {"rows": [torch.zeros(number)]}


def builder(number: int) -> Callable[[Any], Any]:
    rows = torch.zeros(number)
    return lambda x: x + rows


def test_closures_are_looked_into_but_for_the_cached_function_s_own() -> None:
    rows = torch.zeros(3)
    own = functools.lru_cache(lambda number: number + len(rows))
    built = functools.lru_cache(builder)
    bound = functools.cache(lambda number: functools.partial(builder(number), 1))
    for cached in (own, built, bound):
        cached(3)
    assert sizes(own, built, bound) == [1, 0, 0]


def test_of_a_user_s_object_the_tensors_of_a_trace_are_forgotten_alone() -> None:
    """Real ones are its state."""
    tables = functools.cache(Table)
    tables(2)
    assert sizes(tables) == [1]
    with FakeTensorMode():
        tables(3)
    assert sizes(tables) == [0]


class Built(nn.Module):
    def __init__(self, make: Callable[[int], Callable[[Any], Any]]) -> None:
        super().__init__()
        self.linear, self.make = nn.Linear(4, 4), make

    def forward(self, x: Any) -> Any:
        return self.make(x.shape[1])(self.linear(x)).square().mean()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("warm", [False, True])
def test_what_forward_builds_once_is_planned_and_stays_eager_s(warm: bool) -> None:
    module, x = Built(functools.lru_cache(builder)), torch.randn(3, 4)
    if warm:
        module(x)
    step = memplan.optimize(module, (x,), budget="100%", solver="store-all", cache=False)
    assert torch.equal(step(x), module(x))
