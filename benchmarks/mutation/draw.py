"""A seeded draw of mutants: one of each of so many lines of every package."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

from .mutations import Sites

PACKAGES = (
    "graphs",
    "planner",
    "solvers",
    "torch_support",
    "program",
    "devices",
    "model",
    "updates",
    "guards",
    "tracing",
    "runtime",
    "steps",
    "profiling",
    "training",
    "comparison",
    "report",
    "exchange",
    "sizing",
    "cli",
)
"""Packages of the source, each a folder of the root."""


class Mutant(NamedTuple):
    """A mutation of one line.

    file: path from the root.
    line: number in the file, from 1.
    number: place among the mutations of that line.
    """

    file: str
    line: int
    number: int


def lines_of(root: Path, package: str) -> list[list[Mutant]]:
    """Return, for each line of a package that has mutation sites, its mutants."""
    return [
        [Mutant(str(path.relative_to(root)), line, number) for number in range(sites)]
        for path in sorted((root / package).rglob("*.py"))
        for line, sites in sorted(Sites(path.read_text()).counts.items())
    ]


def drawn(root: Path, packages: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw one mutant from each of `count` lines of the packages together.

    A larger count begins with the mutants of a smaller one, so that a draw can be continued.
    """
    lines = [mutants for package in packages for mutants in lines_of(root, package)]
    Random(seed).shuffle(lines)
    return [Random(f"{seed} {mutants[0]}").choice(mutants) for mutants in lines[:count]]
