"""Tensors in functools' caches are forgotten around a model's code, however little is looked at anew."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from memplan.runtime.model.python_state import caches_forgotten


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
