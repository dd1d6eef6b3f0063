"""The package: its name, its parts, and nothing of the checkout but them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from shutil import which

import memplan
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "memplan"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PARTS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_links_at_the_root_name_the_parts() -> None:
    links = {path.name: path.readlink() for path in ROOT.iterdir() if path.is_symlink()}
    assert links == {part: Path("memplan", part) for part in PARTS}


def test_types_and_layers_are_checked_in_every_part() -> None:
    assert PROJECT["tool"]["pyright"]["include"] == ["memplan"]
    layers = " ".join(PROJECT["tool"]["importlinter"]["contracts"][0]["layers"])
    assert {name.removeprefix("memplan.") for name in layers.replace("|", " ").split()} == set(PARTS)


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "docs", "examples"])
def test_what_is_not_part_of_the_package_is_not_in_it(folder: str) -> None:
    done = python(f"import memplan.{folder}", ROOT)
    assert f"No module named 'memplan.{folder}'" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", [[sys.executable, "-m", "memplan"], ["memplan"], ["plan"]])
def test_the_command_has_three_ways_in(command: list[str], tmp_path: Path) -> None:
    program = which(command[0], path=str(Path(sys.executable).parent)) or command[0]
    done = subprocess.run(
        [program, *command[1:], "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"plan, version {memplan.__version__}\n"


def test_both_names_of_the_command_are_installed() -> None:
    own = [
        entry.name
        for entry in entry_points(group="console_scripts")
        if entry.value == "memplan.__main__:main"
    ]
    assert sorted(own) == ["memplan", "plan"]


def test_dir_lists_the_public_names() -> None:
    assert set(memplan.__all__) <= set(dir(memplan))
    for name in memplan.__all__:
        assert getattr(memplan, name).__module__.startswith("memplan.")


def test_type_checkers_resolve_an_editable_install(tmp_path: Path) -> None:
    pyright = which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "users.py").write_text("import memplan\nreveal_type(memplan.load_graph)\n")
    command = [pyright, "--pythonpath", sys.executable, "users.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Type of "memplan.load_graph" is "(path: str | Path' in done.stdout, done.stdout
