"""Docstrings, comments and pages name files, parameters and fields that exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import layers

ROOT = Path(__file__).parents[1]
LAYERS = layers()
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(
    [*(ROOT / "memplan").glob("*.py"), *(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))]
)

FILE = re.compile(r"(?<![\w.*<{-])(?:[\w.-]+/)*([\w-]+\.py)\b(?!\.)")
"""A file's name, with or without its folder."""
USERS = {"MODEL.py", "cheapest/solver.py"}
"""Files of users in examples."""
OTHERS = {
    "docs/how-to/write-a-solver.md": {"cheapest.py", "solver.py"},
    "docs/solvers.md": {"partitioners.py"},
    "torch_support/unsupported.py": {"moe.py"},
    "solvers/offloading/block_swap/block_swap.py": {"custom_offloading_utils.py"},
    "solvers/recomputation/partitioner/operators.py": {"partitioners.py"},
    "solvers/recomputation/partitioner/saved.py": {"partitioners.py"},
    "solvers/recomputation/partitioner/torch_partitioner.py": {"partitioners.py"},
    "solvers/workers/cluster.py": {"random.py"},
    "solvers/workers/process.py": {"enum.py"},
}
"""Files of PyTorch, Python and other packages, per file that names them; None: all names are such."""

ENTRY = re.compile(r"((?:[a-z_]\w*|[A-Z]\w*_\w*)(?:, \w+)*): ?")
"""The first line of an entry of a docstring's parameter block: names, a colon, an explanation."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings and comments of a file, or the lines of a page, with their lines' numbers."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def missing_files(path: Path, known: set[str]) -> list[str]:
    allowed = OTHERS.get(str(path.relative_to(ROOT)), set())
    return [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for line, text in prose(path)
        for match in FILE.finditer(text)
        if allowed is not None and match[0] not in USERS and match[1] not in known | allowed
    ]


def test_named_files_exist() -> None:
    folders = ("memplan", "tests", "benchmarks", "examples", "docs")
    known = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")} | {"setup.py"}
    naming = [path for path in (*SOURCES, *PAGES) if FILE.search(path.read_text())]
    assert len(naming) > 100
    assert [fault for path in naming for fault in missing_files(path, known)] == []


def test_a_file_that_does_not_exist_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    page = tmp_path / "page.py"
    page.write_text('"""See there.py."""\n\nx = 1  # as in storage/gone.py, and MODEL.py\n')
    assert missing_files(page, {"there.py"}) == ["page.py:3: storage/gone.py"]


def entries(docstring: str) -> Iterator[str]:
    """Yield the names in a docstring's parameter blocks.

    A block begins a paragraph; each entry begins a line, and its other lines are indented.
    """
    begins = in_block = False
    for line in docstring.splitlines():
        if not line.strip():
            begins, in_block = True, False
            continue
        entry = ENTRY.match(line)
        if entry and (begins or in_block):
            in_block = True
            yield from entry[1].split(", ")
        elif not line.startswith("    "):
            in_block = False
        begins = False


def names_in(node: ast.AST) -> set[str]:
    """Return all parameters, fields and attributes in a function or class, and the keys of what it
    returns.
    """
    found: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Constant(value=str(name)):
                found.add(name)
            case ast.Assign(targets=targets) if isinstance(node, ast.ClassDef):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.FunctionDef(name=name) if isinstance(node, ast.ClassDef):
                found.add(name)
            case _:
                pass
    return found | {name.lstrip("_") for name in found}


def undefined(tree: ast.AST) -> list[str]:
    return [
        f"{node.name}: {name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in entries(ast.get_docstring(node) or "")
        if name not in names_in(node)
    ]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("layer", LAYERS)
def test_documented_parameters_exist(layer: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == layer
        for fault in undefined(ast.parse(path.read_text()))
    ]
    assert faults == []


def test_a_parameter_that_does_not_exist_is_found() -> None:
    text = '''
class Node:
    """A node.

    producers: numbers of
        operations: many.
    makers, sizes: bytes.
    """

    producers: int
    sizes: int

def find(node, *, limit):
    """Find: a node.

    node: where to begin.
    limit: seconds; none: no limit.

    Remark: none.
    most: gone.

    most: gone too.
    """
'''
    assert undefined(ast.parse(text)) == ["Node: makers", "find: most"]
