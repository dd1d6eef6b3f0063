"""Settings of solvers: each declared with its range and help text, read from `key=value` texts, and checked.

    @dataclass(frozen=True)
    class Settings(SolverSettings):
        slots: int = setting(500, "parts into which the memory is divided", least=1)

A plug-in's `Settings` may be any frozen dataclass; what it does not declare has no help text and no check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf, isfinite
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from ..graphs.errors import InputError
from ..graphs.units import parse_span

T = TypeVar("T")

_DECLARED = "memplan"
"""The key of a declaration in a dataclass field's metadata."""

MOST_WORKERS = 256
"""Processes or threads of a solver: more have brought machines to a stop."""

LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Declaration:
    """Declaration of a setting: its meaning and the values that it may have.

    help: what it means, for `plan solvers NAME`.
    least, most: the smallest and largest number. above, below: numbers just out of its range.
    words: the texts that it may be; empty: any.
    check: raises InputError for a value that it refuses.
    """

    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    words: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None

    def range(self) -> str:
        """Return the values that it may have, in words; empty for any."""
        if self.words:
            *others, last = self.words
            return f"{', '.join(others)} or {last}"
        if self.least is not None and self.most is not None:
            return f"from {self.least:,} to {self.most:,}"
        if self.least is not None and self.below is not None:
            return f"at least {self.least} and below {self.below}"
        if self.least is not None:
            return f"{self.least} or more"
        return f"above {self.above}" if self.above is not None else ""

    def validate(self, name: str, value: Any) -> None:
        """Check a value. Raises InputError."""
        if self.check is not None:
            self.check(value)
        if self.words:
            allowed = value in self.words
        elif self.range():
            allowed = (
                # nan compares as false: refused, as ∞ is.
                (-inf if self.least is None else self.least) <= value < inf
                and value <= (inf if self.most is None else self.most)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
            )
        else:
            return
        if not allowed:
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            raise InputError(f"{name} must be {self.range()}, not {shown}")


def setting(
    default: T,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    words: Sequence[str] = (),
    check: Callable[[Any], object] | None = None,
) -> T:
    """Declare a field of a solver's `Settings`; the arguments as of `Declaration`.

    default: None is always allowed if it is the default: the solver then chooses.
    """
    declaration = Declaration(
        help=help, least=least, most=most, above=above, below=below, words=tuple(words), check=check
    )
    return field(default=default, metadata={_DECLARED: declaration})


def gap_setting(default: float, help: str) -> float:
    """Declare a relative gap."""
    return setting(default, help, least=0, below=1)


def seed_setting(help: str = "seed of the random numbers") -> int:
    """Declare a seed, 0 by default."""
    return setting(0, help, least=0, most=LARGEST_SEED)


def workers_setting(default: T, help: str, least: int = 0) -> T:
    """Declare a number of processes or threads."""
    return setting(default, help, least=least, most=MOST_WORKERS)


@dataclass(frozen=True)
class SolverSettings:
    """Settings that are checked as they are declared. Raises InputError."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, declaration = getattr(self, each.name), declared(each)
            # None, where it is the default, stands for "the solver chooses".
            if declaration is not None and not (value is None and each.default is None):
                declaration.validate(each.name, value)


def declared(each: Field[Any]) -> Declaration | None:
    """Return the declaration of a field; None if it has none."""
    return each.metadata.get(_DECLARED)


def parse_settings(solver: str, kind: type[Any], settings: Mapping[str, str]) -> Any:
    """Parse a solver's `Settings` from `key=value` texts."""
    types = get_type_hints(kind)
    keys = [field.name for field in fields(kind)]
    values: dict[str, Any] = {}
    for key, text in settings.items():
        if key not in keys:
            has = f"its settings are {', '.join(keys)}" if keys else "it has none"
            raise InputError(f"{solver} has no setting {key!r}: {has}")
        wanted = _bare(types[key])
        try:
            # "2min" as well as "120".
            span = parse_span(text) if wanted is float and key.endswith("seconds") else None
            values[key] = _READERS[wanted](text.strip()) if span is None else span
        except (ValueError, KeyError):
            raise InputError(f"{solver}: the setting {key} must be {_WORDS[wanted]}, not {text!r}") from None
    try:
        # The text, not the number: "0.5%" is clear and "0.5" isn't.
        if "gap" in settings:
            check_gap_meant(settings["gap"])
        return kind(**values)
    except InputError as error:
        raise InputError(f"{solver}: {error}") from None


GAP_WITHOUT_PERCENT = 0.1
"""Smallest gap that needs its percent sign: 0.5 is more likely half a percent than a half."""


def check_gap_meant(text: str) -> None:
    """Check that a gap as text is unambiguous.

    Raises InputError if it is a number without % that can be read in two ways, or only as a percentage.
    """
    try:
        number = float(text)
    except ValueError:
        return
    if GAP_WITHOUT_PERCENT <= number < 1.0:
        readings = f"{number:.10g}% or {100.0 * number:.10g}%"
        raise InputError(f"gap {text.strip()} can be read in two ways: write {readings}")
    if 1.0 <= number < 100.0:
        raise InputError(f"gap {text.strip()}: a gap is below 1, that is 100%: write {number:.10g}%")


def _whole_number(text: str) -> int:
    number = int(text)
    if abs(number) > 2**31:
        raise ValueError
    return number


def read_number(text: str) -> float:
    """Parse a number like 0.005 or 0.5%. Raises ValueError."""
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
    """Return `T` of `T` or `T | None`."""
    return next((part for part in get_args(kind) if part is not NoneType), kind)
