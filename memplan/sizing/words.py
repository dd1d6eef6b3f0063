"""Words of `plan size`'s first line: 'a V100 16 GB', '11.7 GiB expected, up to 12.4, of 14.9'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import floor, log10

from ..graphs.machines.gpus import GIB, Gpu
from ..graphs.units import format_bytes

_SPELLED = "AEFHILMNORSX"
"""Letters whose names begin with a vowel: an RTX, an H100."""


def gpu_title(gpu: Gpu) -> str:
    """Return the GPU's name with its memory: 'V100 16 GB'."""
    if re.search(r"\d ?GB\b", gpu.name):
        return re.sub(r"(\d)GB\b", r"\1 GB", gpu.name)
    return f"{gpu.name} {gpu.memory / GIB:.3g} GB"


def with_article(name: str) -> str:
    """Return 'a V100' or 'an RTX 3060'."""
    first = name.split(" ")[0]
    # Capitals are read letter by letter.
    letters = _SPELLED if first.upper() == first else "AEIOU"
    return f"{'an' if first[:1].upper() in letters else 'a'} {name}"


def capital(text: str) -> str:
    """Return a text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def short_sizes(sizes: Iterable[float]) -> list[str]:
    """Return sizes to three digits; one with the unit of the size before it is without it."""
    written, before = list[str](), ""
    for size in sizes:
        amount, unit = format_bytes(int(size)).rsplit(" ", 1)
        exact = float(amount)
        short = number(exact, 3) if exact < 100 and "." in amount else f"{exact:.0f}"
        written.append(short if unit == before else f"{short} {unit}")
        before = unit
    return written


def number(value: float, digits: int = 2) -> str:
    """Return a number of so many digits, all others 0: '4,600', '13', '0.61'."""
    if value <= 0:
        return "0"
    # Negative for large numbers: round(4567, -2) is 4600.
    places = digits - 1 - floor(log10(value))
    rounded = round(value, places)
    return f"{rounded:,.{max(0, places)}f}"


def minutes(seconds: float) -> str:
    """Return a time to come in words: 'less than a minute', 'some 3 minutes', 'some 2 hours'."""
    if seconds < 60:
        return "less than a minute"
    number, unit = (seconds / 60, "minute") if seconds < 5400 else (seconds / 3600, "hour")
    # Minutes up to 90: `some 1 hour` would say too little.
    return f"some {number:.0f} {unit}{'' if round(number) == 1 else 's'}"
