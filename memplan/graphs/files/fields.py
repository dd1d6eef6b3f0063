"""Checks of single fields of a document. Each raises ValueError with the fault; callers add the place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from sys import float_info
from typing import Any, TypeVar, cast

from ..errors import InputError
from ..units import parse_bytes

Row = dict[str, Any]


def mapping(value: object, what: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a mapping of fields")
    return cast(Row, value)


def sequence(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list")
    return cast("list[Any]", value)


def check_fields(row: Row, required: Collection[str], optional: Collection[str]) -> None:
    """Check that every required field is there, and no field that the format does not know."""
    for field in required:
        if field not in row:
            raise ValueError(f"field {field!r} is missing")
    for field in row:
        if field not in required and field not in optional:
            close = get_close_matches(str(field), [*required, *optional], n=1)
            raise ValueError(f"unknown field {field!r}{f': is it {close[0]!r}?' if close else ''}")


def twice(names: Iterable[str]) -> str:
    """Return the first name that occurs twice. There must be one."""
    seen: set[str] = set()
    # seen.add returns None, so a new name is not yielded.
    return next(name for name in names if name in seen or seen.add(name))


def name_of(row: Row) -> str:
    return text(row["name"], "name")


def text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"field {field!r} must be a non-empty text, not {value!r}")
    return value


def optional_text(value: object, field: str) -> str | None:
    return None if value is None else text(value, field)


def flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"field {field!r} must be true or false, not {value!r}")
    return value


def seconds(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"field {field!r} must be a number of seconds, not {value!r}")
    if not 0 <= value <= float_info.max:
        raise ValueError(f"field {field!r} must be finite and not negative, not {value!r}")
    return float(value)


def size(value: object, field: str) -> int:
    """Return a size in bytes: a non-negative int as it is, anything else read by its unit."""
    # type(): a bool is an int for isinstance.
    if type(value) is int and 0 <= value < 2**62:
        return value
    try:
        return parse_bytes(value)
    except InputError as error:
        raise ValueError(f"field {field!r}: {error}") from None


T = TypeVar("T")


def word(value: object, field: str, words: Mapping[str, T]) -> T:
    try:
        # KeyError: not a word. TypeError: not hashable, like a list.
        return words[cast(str, value)]
    except (KeyError, TypeError):
        raise ValueError(f"unknown {field} {value!r}: one of {', '.join(words)}") from None


def indices(value: object, field: str, index: Mapping[str, int]) -> list[int]:
    """Return the indices of a list of tensor names, none of them twice."""
    found: list[int] = []
    for name in sequence(value, f"field {field!r}"):
        if not isinstance(name, str) or name not in index:
            raise ValueError(f"field {field!r} names the unknown tensor {name!r}")
        found.append(index[name])
    if len(found) > 1 and len(set(found)) != len(found):
        raise ValueError(f"field {field!r} names a tensor twice")
    return found
