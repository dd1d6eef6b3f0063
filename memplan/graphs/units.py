"""Bytes, rates and times as people write them.

GB = 10^9, GiB = 2^30; the case of a unit does not matter, and its B may be left out: 12G is 12GB.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import inf
from sys import float_info

from .errors import InputError

UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**k for k, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**k for k, prefix in enumerate("KMGTP", start=1)},
}
# "B" without its B is "": a number without a unit is bytes.
_BY_LOWER_CASE = {
    spelling: factor for unit, factor in UNITS.items() for spelling in (unit.lower(), unit.lower()[:-1])
}
# Bounded: Python's int() takes 4,300 digits of a text, and that of 1e999999999 would have a billion.
_NUMBER = r"\d{1,999}(?:\.\d{0,999})?(?:[eE][+-]?\d{1,3})?|\.\d{1,999}"
# ASCII: \d would take the digits of all scripts.
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]*)\s*", re.ASCII)
_LARGEST = 2**62
_SLOWEST = 1e-9
SLOW_RATE = 1e6
"""Bytes per second: no link or processor of a machine that trains is as slow."""
_LONGEST = 3600.0
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6")}
_SPANS = {"m": 60, "min": 60, "h": 3600, "d": 86400, **_SECONDS}
# Longest units first, or m would begin min and ms; a digit may follow a unit, as in 1m30s.
_SPAN = re.compile(
    rf"\s*({_NUMBER})\s*({'|'.join(sorted(_SPANS, key=len, reverse=True))})(?=[\s\d.]|$)", re.ASCII
)
BARE = re.compile(rf"\s*({_NUMBER})\s*", re.ASCII)
"""A number without a unit, as text."""
FEW_BYTES = 1000
"""A number without a unit that is below this is more likely a share, or a number of gigabytes, than bytes."""
_DURATION = re.compile(rf"\s*({_NUMBER})\s*({'|'.join(_SECONDS)})\s*", re.ASCII)


def parse_bytes(value: object) -> int:
    """Parse a number of bytes: 12000000000, '12GB', '12G', '11.5 GiB'. Fractions of a byte are dropped.

    Raises InputError: not a number, negative, not finite, an unknown unit.
    """
    return int(_quantity(value))


def parse_size(value: object) -> int:
    """Parse a number of bytes that something takes: above 0, and with a unit if it is small.

    Raises InputError like parse_bytes.
    """
    size, number = parse_bytes(value), bare_number(value)
    if size <= 0:
        raise InputError(f"{value!r} is not a size: it must be above 0")
    if number is not None and number < FEW_BYTES:
        raise InputError(f"{number:g} is {number:g} bytes: write a unit, like {number:g}MB, or {number:g}B")
    return size


def parse_rate(value: object) -> float:
    """Parse a rate in bytes/s: 12e9, '12GB/s', '12 GiB', 0.5.

    Raises InputError like parse_bytes, and for 0.
    """
    rate = float(_quantity(value.removesuffix("/s") if isinstance(value, str) else value))
    if rate < _SLOWEST:
        raise InputError(f"{value!r} is not a rate: it must be above 0 ({_SLOWEST} or more)")
    return rate


def check_rate_unit(value: object) -> None:
    """Raise InputError for a rate without a unit that is more likely of gigabytes than of bytes a second.

    With a unit, also B/s, any rate is valid.
    """
    rate = bare_number(value.removesuffix("/s") if isinstance(value, str) else value)
    if rate is not None and 0 < rate < SLOW_RATE:
        unit, said = "GB/s" if rate < FEW_BYTES else "MB/s", f"{rate:.10g}"
        raise InputError(
            f"{said} without a unit is {said} bytes a second, slower than any: write {said}{unit}, or "
            f"{said}B/s"
        )


def parse_seconds(value: object) -> float:
    """Parse a time in seconds: 2e-5, '20us', '20 µs', '1.5ms'.

    Raises InputError: not a time, negative, not finite, more than an hour.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match:
        number, unit = match.groups()
        seconds = float(Decimal(number) * _SECONDS[unit])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(min(value, float_info.max))  # an int may be too large for a float
    else:
        raise InputError(f"{value!r} is not a time, like 20us or 2e-5 (seconds)")
    if not 0 <= seconds <= _LONGEST:
        raise InputError(f"{value!r} is not a time between 0 and {_LONGEST:g} s")
    return seconds


def bare_number(value: object) -> float | None:
    """Return the number that has no unit, in a text or not; None for anything else."""
    if isinstance(value, str):
        match = BARE.fullmatch(value)
        return float(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(min(value, float_info.max))  # an int may be too large for a float


def parse_span(text: str) -> float | None:
    """Return the seconds of a time with units: '10s', '500 ms', '1.5h', '1m30s' (m: minutes).

    None if it is not one.
    """
    seconds, rest = Decimal(0), text.lower().strip()
    while match := _SPAN.match(rest):
        seconds += Decimal(match[1]) * _SPANS[match[2]]
        rest = rest[match.end() :]
        if not rest:
            return float(seconds)
    return None


def format_bytes(count: int) -> str:
    """Return '11.18 GiB', with the largest unit that leaves at least 1."""
    if count < 1024:
        return f"{count} B"
    power = max(k for k in range(1, 6) if count >= 1024**k or k == 1)
    return f"{count / 1024**power:.2f} {'KMGTP'[power - 1]}iB"


def _quantity(value: object) -> Decimal:
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number of bytes")
    if not 0 <= value < inf:
        raise InputError(f"{value!r} is not a finite, non-negative number of bytes")
    return _in_range(Decimal(value), value)


def _from_text(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not a number of bytes, like 12GB or 11.5GiB")
    number, unit = match.groups()
    if unit.lower() not in _BY_LOWER_CASE:
        raise InputError(f"{text!r} has the unknown unit {unit!r}: use one of {', '.join(UNITS)}")
    # In Decimal: a product of floats may lie just below a whole number, and lose a byte.
    return _in_range(Decimal(number) * _BY_LOWER_CASE[unit.lower()], text)


def _in_range(count: Decimal, value: object) -> Decimal:
    if count > _LARGEST:
        raise InputError(f"{value!r} is more bytes than any machine has")
    return count


def counted(count: int, noun: str) -> str:
    """Return '1 operation', '2 operations', '2 prefetches'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ch") else "s")


def duration(seconds: float) -> str:
    """Return '1.20 ms': three digits, in the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:,.{_places(seconds / factor)}f} {unit}"
    return f"{seconds / 1e-6:.{_places(seconds / 1e-6)}f} µs" if seconds else "0 s"


def format_rate(bytes_per_second: float | None) -> str:
    """Format a rate as '10.4 GB/s', with GB = 10^9; '-' for None."""
    return "-" if bytes_per_second is None else f"{bytes_per_second / 1e9:,.3g} GB/s"


def signed(fraction: float) -> str:
    """Format a share as '+6.9%'."""
    return f"{fraction:+z.1%}"  # z: what rounds to minus zero is +0.0%


def _places(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0
