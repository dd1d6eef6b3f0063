"""Measured figures that several pages quote: docs/figures.toml has each once, and this writes them.

python docs/figures.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Figure(NamedTuple):
    """Figures of one measurement. text: a pattern with a group for each of values. pages: that quote them."""

    name: str
    source: Path
    text: re.Pattern[str]
    values: list[str]
    pages: list[Path]

    def quoted(self, page: str) -> list[list[str]]:
        """Return the figures of each place of a page that quotes them."""
        return [[*found.groups()] for found in self.text.finditer(page)]

    def written(self, page: str) -> str:
        """Return the page with the figures in each such place."""
        return self.text.sub(self._replaced, page)

    def _replaced(self, found: re.Match[str]) -> str:
        text, begin = found[0], found.start()
        for group in range(len(self.values), 0, -1):  # the last first: others keep their places
            start, end = (place - begin for place in found.span(group))
            text = text[:start] + self.values[group - 1] + text[end:]
        return text


def figures() -> Iterator[Figure]:
    """Read docs/figures.toml."""
    for row in tomllib.loads((ROOT / "docs" / "figures.toml").read_text())["figure"]:
        source = ROOT / "benchmarks" / "results" / row["from"]
        pages = [ROOT / page for page in row["pages"]]
        yield Figure(row["name"], source, re.compile(row["text"]), row["values"], pages)


def main() -> None:
    for figure in figures():
        for path in figure.pages:
            path.write_text(figure.written(path.read_text()))


if __name__ == "__main__":
    main()
