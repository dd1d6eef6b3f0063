"""Solvers of other packages, installed as files: a module and the metadata that names its entry points."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from memplan.solvers.registry.catalogue import GROUP

NO_SETTINGS = """from dataclasses import dataclass

@dataclass(frozen=True)
class Settings:
    pass

"""


def install(
    folder: Path, patch: pytest.MonkeyPatch, source: str, *others: tuple[str, str], name: str = "theirs"
) -> None:
    """Install a solver for one test.

    source: its module, with `solve(problem, options)`; without `Settings` there are none to set.
    others: more entry points, (name, module).
    """
    module = f"solver_{name}"
    settings = "" if "class Settings" in source else NO_SETTINGS
    (folder / f"{module}.py").write_text(settings + source)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = [(name, module), *others]
    lines = "".join(f"{solver} = {where}\n" for solver, where in points)
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    sys.modules.pop(module, None)  # that of another test, from another folder
    patch.syspath_prepend(folder)
    importlib.invalidate_caches()
