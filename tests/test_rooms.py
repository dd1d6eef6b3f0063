"""A room is entered by its doors: the files that its `__init__` names, or the file with the room's name.

Rooms are the folders below the floors (graphs, planner, solvers, comparison, runtime, training, exchange,
cli). What a floor has at its top is open to all who may import the floor.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = (
    "graphs",
    "instances",
    "planner",
    "solvers",
    "comparison",
    "runtime",
    "training",
    "report",
    "exchange",
    "cli",
)
DOORS = re.compile(r"Doors: ([\w, \n]+)\.")


def modules() -> dict[str, Path]:
    files = (path for min_memory in FLOORS for path in sorted((ROOT / min_memory).rglob("*.py")))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = name.split(".")[: -node.level]
            parts = [*base, *(node.module.split(".") if node.module else ())]
            for alias in node.names:
                whole = ".".join([*parts, alias.name])
                yield whole if whole in known else ".".join(parts)


def room(module: str) -> str:
    return module.rpartition(".")[0]


def doors(name: str) -> set[str]:
    """Of a room: whom its `__init__` lets in, and the file with its name."""
    text = ast.get_docstring(ast.parse((ROOT / name.replace(".", "/") / "__init__.py").read_text())) or ""
    named = DOORS.search(text)
    return {name.rpartition(".")[2], *(re.split(r",\s+", named[1]) if named else ())}


def entered() -> dict[str, dict[str, list[str]]]:
    """Per room: which of its files others import, and who."""
    known = modules()
    found: dict[str, dict[str, list[str]]] = {}
    for name, path in known.items():
        for target in imported(name, path, known):
            if target in known and room(target) != room(name) and "." in room(target):
                file = target.rpartition(".")[2]
                found.setdefault(room(target), {}).setdefault(file, []).append(name)
    return found


def test_rooms_are_entered_by_their_doors() -> None:
    faults = [
        f"{', '.join(who)}: {name}.{file} is no door; name it in {name}'s __init__, or enter by {doors(name)}"
        for name, files in entered().items()
        for file, who in files.items()
        if file not in doors(name)
    ]
    assert not faults, "\n".join(faults)


def test_doors_are_files_that_others_enter() -> None:
    """A name that nobody needs any more goes."""
    rooms = {room(name) for name in modules() if "." in room(name)}
    used = entered()
    for name in sorted(rooms):
        own = name.rpartition(".")[2]
        assert doors(name) - {own} <= used.get(name, {}).keys(), name
