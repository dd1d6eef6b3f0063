"""A torch older than those tested is refused, a newer one told of; all files name the same bounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from memplan.torch_support.torch_range import NEWEST, OLDEST

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def with_torch(version: str, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Python, in which that version of torch seems to be installed."""
    metadata = folder / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.scripts
def test_an_old_one_is_refused_in_one_line(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("")
    code = f"from memplan.cli.main import main\nmain(['profile', {str(model)!r}])"
    ended = with_torch("2.3.1", tmp_path, code)
    assert ended.returncode == 4
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "torch 2.3.1 is too old: memplan needs" in ended.stderr


@pytest.mark.scripts
def test_solving_needs_none(tmp_path: Path) -> None:
    ended = with_torch("2.3.1", tmp_path, "from memplan.cli.main import main\nmain(['solvers'])")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("version", "lines"), [("2.99.0a0+git1f", 1), (str(torch.__version__), 0)])
def test_one_newer_than_tested_is_told_of(version: str, lines: int, tmp_path: Path) -> None:
    ended = with_torch(version, tmp_path, "import memplan.torch_support.raw")
    assert ended.returncode == 0
    assert ended.stderr.count("\n") == lines
    assert not lines or f"torch {version} is newer than any that memplan was tested with" in ended.stderr


def test_pyproject_names_the_oldest_too() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    (requirement,) = extras["torch"]
    assert requirement == f"torch>={OLDEST[0]}.{OLDEST[1]}"


def test_constraints_pin_one_that_is_tested() -> None:
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (PYPROJECT.parent / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    assert OLDEST <= (int(pinned[1]), int(pinned[2])) <= NEWEST
