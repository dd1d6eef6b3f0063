"""Types of options that people write in more than one way: times, and words from a list."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import click

from ..graphs.folders.scratch import Scratch
from ..graphs.units import parse_span

_DTYPES = ({"bfloat16", "bf16"}, {"float16", "fp16", "half"}, {"float32", "fp32", "float"})
"""Spellings of each dtype."""


class Seconds(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]: generic since click 8.5
    """A time as seconds: a number of them, or numbers with units."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = parse_span(value) if isinstance(value, str) else None
        if seconds is not None:
            return seconds
        try:
            return click.FLOAT.convert(cast("Any", value), param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a time, like 30 (seconds), 30s, 5m or 1h", param, ctx)


class Document(click.Path):
    """A file to read: its path. `-` is standard input, of which a copy is made."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) not in ("-", "/dev/stdin") or ctx is None:
            return super().convert(value, param, ctx)
        text = sys.stdin.buffer.read()
        # Readers go by the suffix; each document of memplan is an object.
        suffix = ".json" if text.lstrip()[:1] == b"{" else ".yaml"
        copy = Path(ctx.with_resource(Scratch("input")), f"stdin{suffix}")
        copy.write_bytes(text)
        return copy


DOCUMENT = Document(path_type=Path)
SECONDS = Seconds()
TIME_METAVAR = "30|30s|5m"


class Word(click.Choice[str]):
    """One of several words, in any case.

    also: other spellings -> the word that they stand for.
    """

    def __init__(self, words: Iterable[str], also: Mapping[str, str] | None = None) -> None:
        super().__init__(list(words), case_sensitive=False)
        self._also = dict(also or {})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(self._also.get(str(value).lower(), value), param, ctx)


def dtype_word(words: Iterable[str]) -> Word:
    """Return the type of an option for dtypes, in PyTorch's spelling or that of other tools."""
    words = list(words)
    return Word(
        words, {other: word for word in words for names in _DTYPES if word in names for other in names}
    )
