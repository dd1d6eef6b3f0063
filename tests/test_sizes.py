"""Sizes: code lines of each room within its budget (sizes.tsv), and no file above 400 of them.

Code lines are those without docstrings, comments, blanks and imports. A budget is raised, with a sentence of
why, where a room has to grow; it is lowered as the room shrinks, so that it always says what the room takes.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from pathlib import Path
from typing import TypeGuard

import memplan
import pytest
from sources import layers

PACKAGE = Path(memplan.__file__).parent
ROWS = [line.split("\t") for line in (Path(__file__).parent / "sizes.tsv").read_text().splitlines()[1:]]
SLACK = 60
"""Code lines that a room may take less than its budget says."""
MOST_CODE, LONG, MOST_LONG = 400, 450, 4
"""Code lines of a file; lines of a long file; long files."""
ALONE = "planner/certificates/verify.py"
MOST_ALONE = 610
"""A program of one file, which runs without memplan, may have so many code lines."""
LONG_FILES = {
    ALONE: "it imports nothing of memplan, so that who does not trust memplan reads one file",
    "runtime/run/cycle.py": "one object that owns all copies; what it knows of them changes in each method",
    "steps/execute.py": "the public step: half of its lines say what its methods take and return",
    "tracing/repeated.py": "one algorithm, repeated layers, whose steps share most of their names",
}
"""Each long file, with its reason."""
BETWEEN = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Tell whether a statement is a text alone: a docstring, or what describes a name above it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def code_lines(source: str) -> int:
    """Return how many lines have code that is neither a docstring nor an import."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BETWEEN:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def test_what_counts_as_code() -> None:
    source = '"""Docstring.\n\nOf three lines."""\n\nimport os\n\n# comment\nX = (\n    1,\n)\n"""Text."""\n'
    assert code_lines(source) == 3


def test_every_room_has_a_budget() -> None:
    assert [room for room, _budget, _why in ROWS] == layers()


@pytest.mark.parametrize(("room", "budget", "why"), ROWS)
def test_each_room_is_within_its_budget(room: str, budget: str, why: str) -> None:
    used = sum(code_lines(path.read_text()) for path in (PACKAGE / room).rglob("*.py"))
    assert int(budget) - SLACK <= used <= int(budget), f"{room} has {used} code lines"
    assert why.endswith("."), "a budget has a sentence of why"


def test_no_file_has_too_much_code() -> None:
    sizes = {str(path.relative_to(PACKAGE)): code_lines(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert sizes.pop(ALONE) <= MOST_ALONE
    assert {name: size for name, size in sizes.items() if size > MOST_CODE} == {}


def test_few_files_are_long_and_each_has_a_reason() -> None:
    long = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if len(path.read_text().splitlines()) > LONG
    }
    assert long == LONG_FILES.keys()
    assert len(long) <= MOST_LONG
