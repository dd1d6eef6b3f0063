"""Options that an unknown one may mean: by its letters, a choice, or words of a help text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

import click

_NEAR = 0.7
"""Least likeness of two names, of 1."""
_FIRST_WORDS = 4
"""Words of a help text that say what the option is."""
_PART = 3
"""Letters of a name that name it."""
_MOST = 2


def meant(unknown: str, options: Sequence[click.Option]) -> list[str]:
    """Return the options that `unknown` may mean, the likeliest first, at most two.

    By likeness of the names, or one in the other. Where there is none, by a choice of that name; then by help
    texts that begin with its words.

    unknown: with its dashes.
    """
    wanted, words = unknown.strip("-"), _words(unknown)
    named = {max(option.opts, key=len).strip("-"): option for option in options if not option.hidden}
    contained = [name for name in named if name in wanted or (wanted in name and len(wanted) >= _PART)]
    near = dict.fromkeys([*get_close_matches(wanted, named, cutoff=_NEAR), *contained])
    chosen = (f"{name} {choice}" for name, option in named.items() for choice in words & _choices(option))
    described = (name for name, option in named.items() if words and words <= _said(option))
    return [f"--{name}" for name in ([*near] or [*chosen] or [*described])[:_MOST]]


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", text.lower())}


def _choices(option: click.Option) -> set[str]:
    return set(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else set()


def _said(option: click.Option) -> set[str]:
    return _words(" ".join((option.help or "").split()[:_FIRST_WORDS]))
