"""docs/troubleshooting.md has an entry for each error class, its exit code, and lines that memplan prints."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
from memplan.cli.exits import verdict
from memplan.graphs.errors import MemplanError

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(each.parent.name for each in (ROOT / "memplan").glob("*/__init__.py"))
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
PARTS = re.split(r"^##+ (.+)$", PAGE, flags=re.M)
ENTRIES = {head: text for head, text in zip(PARTS[1::2], PARTS[2::2], strict=True) if head.endswith("Error")}
CODE = re.compile(r"Exit code (\d)\. ")
ROW = re.compile(r"^\| `([^`]+)` \|", re.M)
SHORTEST = 4
"""Characters of the shortest part of a quoted line that is searched for."""


@cache
def sources() -> tuple[dict[str, tuple[set[str], str]], str]:
    """Return the package's classes (their bases and module), and all its texts, parts of f-strings too."""
    bases: dict[str, tuple[set[str], str]] = {}
    texts: list[str] = []
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}, module
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return bases, "\n".join(texts)


@cache
def error_classes() -> dict[str, str]:
    """Return every subclass of MemplanError in the sources: class name to its module."""
    bases, _texts = sources()
    known = {"MemplanError"}
    while more := {name for name, (above, _) in bases.items() if above & known} - known:
        known |= more
    return {name: bases[name][1] for name in known - {"MemplanError"}}


CAUGHT = {"ConvertedError", "UnrepeatedValuesError"}
"""Errors that memplan catches itself: the trace goes on without the tensor, eager PyTorch runs the batch."""


def test_every_error_class_has_an_entry() -> None:
    heads = [head for head in PARTS[1::2] if head.endswith("Error")]
    assert sorted(heads) == sorted(error_classes().keys() - CAUGHT)


def test_every_entry_says_a_line_and_what_to_do() -> None:
    for name, text in ENTRIES.items():
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert rows[0] == "| the line says | cause | what to do |", name
        assert len(rows) > 1, name
        assert all(len(row.strip("| ").split(" | ")) == 3 for row in rows), name


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_exit_code_is_the_command_lines(name: str) -> None:
    kind = getattr(importlib.import_module(f"memplan.{error_classes()[name]}"), name)
    error: MemplanError = kind.__new__(kind)
    code = CODE.search(ENTRIES[name])
    assert code is not None
    assert int(code[1]) == verdict(error)[0]


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_quoted_lines_are_in_the_sources(name: str) -> None:
    for line in ROW.findall(ENTRIES[name]):
        for part in line.split("…"):
            assert len(part.strip()) < SHORTEST or part.strip(" ;:,") in sources()[1], (line, part)
