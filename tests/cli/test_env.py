"""`plan env`, and what an internal error asks for."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import version

import pytest
from click.testing import CliRunner
from memplan.cli.exits import Exit, verdict
from memplan.cli.main import main
from memplan.version import __version__


def test_env_has_versions_and_machine() -> None:
    shown = CliRunner().invoke(main, ["env"])
    assert shown.exit_code == 0, shown.stderr
    for name in ("numpy", "highspy", "torch"):
        assert f"{name} {version(name)}" in shown.stdout
    assert f"memplan        {__version__}" in shown.stdout
    found = json.loads(CliRunner().invoke(main, ["env", "--json"]).stdout)
    assert found["python"] == sys.version.split()[0]
    assert found["packages"]["torch"] == version("torch")
    assert {"cuda", "gpus", "threads"} <= found["torch"].keys()


def test_without_any_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        del name

    monkeypatch.setattr(import_module("memplan.cli.env"), "_version", missing)
    found = json.loads(CliRunner().invoke(main, ["env", "--json"]).stdout)
    assert found["torch"] is None
    assert set(found["packages"].values()) == {None}


def test_an_internal_error_says_what_to_send() -> None:
    code, line = verdict(RuntimeError("out of cheese"))
    assert code == Exit.FAULT
    assert "please report it" in line
    assert "`plan env`" in line
    assert "--debug" in line
