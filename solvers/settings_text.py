"""A solver's settings from `key=value` texts, by the types of its `Settings`; checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf, isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..graphs.errors import InputError


def parse_settings(solver: str, kind: type[Any], settings: Mapping[str, str]) -> Any:
    """The solver's `Settings` from `key=value` texts."""
    types = get_type_hints(kind)
    keys = [field.name for field in fields(kind)]
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in keys:
            has = f"its settings are {', '.join(keys)}" if keys else "it has none"
            raise InputError(f"{solver} has no setting {key!r}: {has}")
        wanted = _bare(types[key])
        try:
            values[key] = _READERS[wanted](text.strip())
        except (ValueError, KeyError):
            raise InputError(f"{solver}: the setting {key} must be {_WORDS[wanted]}, not {text!r}") from None
    try:
        if "gap" in settings:
            check_gap_meant(settings["gap"])
        return kind(**values)
    except InputError as error:
        raise InputError(f"{solver}: {error}") from None


MOST_WORKERS = 256
"""Processes or threads of a solver: more have brought machines to a stop."""


def check_workers(count: int, least: int, name: str = "workers") -> None:
    """Raises InputError."""
    _check_between(name, count, least, MOST_WORKERS)


def check_least(settings: object, **least: float) -> None:
    """Each of these settings is finite and no less than this. Raises InputError."""
    for name, low in least.items():
        value = getattr(settings, name)
        if not low <= value < inf:
            raise InputError(f"{name} must be {low} or more, not {value}")


def check_between(settings: object, **spans: tuple[float, float]) -> None:
    """Each of these settings is from the one to the other. Raises InputError."""
    for name, (low, high) in spans.items():
        _check_between(name, getattr(settings, name), low, high)


def _check_between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} must be from {low:,} to {high:,}, not {value}")


def check_gap(gap: float) -> None:
    """Relative: from 0, below 1. Raises InputError."""
    if not 0 <= gap < 1:
        raise InputError(f"gap must be at least 0 and below 1, not {gap}")


GAP_WITHOUT_PERCENT = 0.1
"""From here on a gap is written with its percent sign: 0.5 is more likely half a percent than a half."""


def check_gap_meant(text: str) -> None:
    """Raises InputError where it is a number without % that can be read in two ways, or as a percentage
    only."""
    try:
        number = float(text)
    except ValueError:
        return
    if GAP_WITHOUT_PERCENT <= number < 1.0:
        readings = f"{number:.10g}% or {100.0 * number:.10g}%"
        raise InputError(f"gap {text.strip()} can be read in two ways: write {readings}")
    if 1.0 <= number < 100.0:
        raise InputError(f"gap {text.strip()}: a gap is below 1, that is 100%: write {number:.10g}%")


def check_words(settings: object, **words: tuple[str, ...]) -> None:
    """Each of these settings is one of these words. Raises InputError."""
    for name, known in words.items():
        value = getattr(settings, name)
        if value not in known:
            raise InputError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}")


def _whole_number(text: str) -> int:
    number = int(text)
    if abs(number) > 2**31:
        raise ValueError
    return number


def read_number(text: str) -> float:
    """0.005 or 0.5%. Raises ValueError."""
    number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not isfinite(number):
        raise ValueError
    return number


_READERS: dict[type, Callable[[str], Any]] = {
    int: _whole_number,
    float: read_number,
    bool: lambda text: _BOOLS[text.lower()],
    str: str,
}
_WORDS: dict[type, str] = {
    int: "a whole number of at most 2^31",
    float: "a number",
    bool: "true or false",
    str: "text",
}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _bare(kind: Any) -> type:
    """`T` of `T` or `T | None`."""
    return next((part for part in get_args(kind) if part is not NoneType), kind)
