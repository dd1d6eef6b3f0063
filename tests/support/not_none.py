"""A check for values that may be None, for the tests that know better."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def not_none(value: Value | None) -> Value:
    """Return the value, and fail if it is None."""
    assert value is not None
    return value
