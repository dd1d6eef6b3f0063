"""`plan run --trace`: planned and measured in one trace, every step of the schedule in both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers), (torch.randn(512, 64),), lambda output: output.square().mean()
"""


def test_planned_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)

    def plan(*words: str):
        return CliRunner().invoke(main, list(words))

    assert plan("profile", "model.py", "-o", "g.json").exit_code == 0
    assert plan("solve", "g.json", "--budget", "80%", "--solver", "rotor", "-o", "s.json").exit_code == 0
    run = ("run", "s.json", "--graph", "g.json", "--model", "model.py", "--timing-repeats", "1")
    ended = plan(*run, "--trace", "t.json", "--json")
    assert ended.exit_code == 0, ended.stderr
    rows = json.loads(Path("t.json").read_text())["traceEvents"]
    names = {row["pid"]: row["args"]["name"].split(":")[0] for row in rows if row["name"] == "process_name"}
    assert list(names.values()) == ["planned", "measured"]
    steps = {
        names[pid]: [row["args"]["step"] for row in rows if row["ph"] == "X" and row["pid"] == pid]
        for pid in names
    }
    assert steps["planned"] == steps["measured"] != []
    lines = {row["args"]["bytes"] for row in rows if row["name"] == "device peak"}
    document = json.loads(ended.stdout)
    assert len(lines) == 1
    assert lines.pop() <= document["predicted"]["peak"]
