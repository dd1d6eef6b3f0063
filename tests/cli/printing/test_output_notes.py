"""Notes on standard error: a result that is elsewhere, and times and links of different machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph

Plan = Callable[..., Result]
SOLVE = ("--budget", "100%", "--solver", "store-all", "--bound-time", "0")
MODEL = "import torch\n\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),), torch.sum\n"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    graph = replace(chain(4), source={"device": "cpu", "measured": {"signatures": 1, "spread": 0.1}})
    save_graph(graph, "cpu.json")
    save_graph(replace(graph, source={"device": "cuda", "measured": {}}), "cuda.json")
    return lambda *arguments: CliRunner().invoke(main, [*arguments])


def test_an_estimate_needs_no_option_but_the_gpu(plan: Plan) -> None:
    Path("m.py").write_text(MODEL)
    result = plan("profile", "m.py", "--gpu", "rtx3060", "-o", "g.json")
    assert result.exit_code == 0, result.stderr
    assert load_graph("g.json").source["estimate"]


def test_a_profile_that_cannot_be_written_is_elsewhere_and_named(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("m.py").write_text(MODEL)
    import memplan.cli.profile as profile

    saved: list[str] = []

    def full(graph: Graph, path: Path, **named: Any) -> None:
        saved.append(path.name)
        if len(saved) == 1:
            raise InputError(f"{path}: cannot be written: No space left on device")
        save_graph(graph, path, **named)

    monkeypatch.setattr(profile, "save_graph", full)
    result = plan("profile", "m.py", "--gpu", "rtx3060", "-o", "g.json")
    assert result.exit_code == 2
    assert "g.json: cannot be written: No space left on device; it is in memplan-" in result.stderr
    assert load_graph(saved[1]).name
    assert not Path("g.json").exists()


def test_times_of_the_cpu_with_links_of_a_gpu_are_noted(plan: Plan) -> None:
    noted = "operation times were measured on cpu, links are those of rtx3060"
    assert noted in plan("solve", "cpu.json", *SOLVE, "--machine", "rtx3060").stderr
    assert "measured on cpu" not in plan("solve", "cuda.json", *SOLVE, "--machine", "rtx3060").stderr
    Path("unlinked.yaml").write_text("device: {capacity: 12GB}\n")
    assert "measured on cpu" not in plan("solve", "cpu.json", *SOLVE, "--machine", "unlinked.yaml").stderr
