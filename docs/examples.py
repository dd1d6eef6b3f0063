"""Every example of the documentation runs as it stands.

A page's examples run from its top to its end, in one folder and in one Python. Comments in the page say what
a reader needs not see:

    <!-- file: NAME -->          the block is that file
    <!-- run before … -->        Python that runs before the next block
    <!-- install -->             the block is pip: the folder is installed as a package
    <!-- not run: WHY -->

Pages about training begin with training/setup.py. Notebooks run too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SHORT = {"MEMPLAN_TIME_LIMIT": "10s", "MEMPLAN_STATIC_LAYOUT": "0"}
"""Options of searches that a page leaves to their defaults: the test does not wait for good plans."""
PAGES = [
    DOCS / "start.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    DOCS / "gallery.md",
    DOCS / "training.md",
    *sorted((DOCS / "training").glob("*.md")),
    ROOT / "README.md",
    *sorted((DOCS / "notebooks").glob("*.ipynb")),
]
BLOCK = re.compile(
    r"(?:<!-- (?P<word>file|run before|install|not run)(?P<more>.*?)-->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.S | re.M,
)
INSTALL = [
    sys.executable,
    *["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", "installed", "."],
]
SHOWN = {"", "text", "yaml", "json"}
"""Blocks that only show something. `sh`: what a reader does once, outside."""


class Block(NamedTuple):
    language: str
    text: str
    word: str
    more: str


def cells(page: Path) -> Iterator[Block]:
    """Yield the code of a notebook: lines that begin with `!` are commands."""
    for cell in json.loads(page.read_text())["cells"]:
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
        for shell, group in groupby(lines, lambda line: line.startswith("!")):
            text = [f"$ {line[1:]}" if shell else line for line in group]
            yield Block("console" if shell else "python", "\n".join(text), "", "")


def blocks(page: Path) -> Iterator[Block]:
    if page.suffix == ".ipynb":
        yield from cells(page)
        return
    text = page.read_text()
    found = list(BLOCK.finditer(text))
    assert sum(line.startswith("```") for line in text.splitlines()) == 2 * len(found), "a fence is not read"
    for match in found:
        yield Block(
            match["language"], match["text"], match["word"] or "", (match["more"] or "").strip(": \n")
        )


def script(page: Path) -> Iterator[str]:
    """The page as one Python program: so names live on from block to block."""
    yield "import runpy, subprocess, sys, os; sys.path.insert(0, os.getcwd())"
    if "training" in (page.stem, page.parent.name):
        yield (DOCS / "training" / "setup.py").read_text()
    for block in blocks(page):
        if block.word == "not run":
            assert block.more, f"{page.name}: say why it is not run"
        elif block.word == "file":
            yield f"os.makedirs(os.path.dirname({block.more!r}) or '.', exist_ok=True)"
            yield f"open({block.more!r}, 'w').write({block.text!r})"
        elif block.word == "install":
            yield f"subprocess.run({INSTALL!r}, check=True)"
        elif block.language == "python":
            if block.word == "run before":
                yield block.more
            yield block.text
        elif block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ "), f"{page.name}: {line!r} is no command"
                yield f"subprocess.run({command(line[2:])!r}, check=True)"
        else:
            assert block.language in {*SHOWN, "sh", "toml"}, block.language


def command(line: str) -> list[str]:
    program, *words = shlex.split(line)
    modules = {"plan": ["-c", "from memplan.cli.main import main; main()"], "python": []}
    here = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    return [sys.executable, *modules[program], *here]


@pytest.mark.timeout(650)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_end(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(script(page)))
    environment = {
        **os.environ,
        **SHORT,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tmp_path / "installed"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
    }
    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]


def test_every_page_has_something_to_run() -> None:
    for page in PAGES:
        if page.stem == "guards":
            continue  # its one block is a sketch of a user's code
        assert any(
            block.language in ("python", "console") and block.word != "not run" for block in blocks(page)
        ), page
