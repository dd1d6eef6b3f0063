"""`--split`: operations in pieces from the command line, to a schedule that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(2000, 16), nn.Linear(16, 2000, bias=False)

    def forward(self, words):
        return nn.functional.cross_entropy(self.head(self.embedding(words)), words.roll(-1))

def build():
    torch.manual_seed(0)
    return Model(), (torch.randint(2000, (128,)),)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("words.py").write_text(MODEL)
    return "words.py"


def call(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == status, result.stderr
    return result


def test_a_plan_in_pieces_runs_at_a_third(model: str) -> None:
    search = ("--budget", "35%", "--time-limit", "2", "--solver", "auto")
    call("optimize", model, *search, status=3)
    Path("words.graph.json").unlink()
    found = json.loads(call("optimize", model, *search, "--split", "--json").stdout)
    whole = json.loads(Path("words.graph.json").read_text())["source"]["within"]["bytes"] / 0.35
    assert found["peak"] <= 0.36 * whole
    ran = json.loads(call("run", "words.schedule.json", "--model", model, "--json").stdout)
    assert ran["equal"] is True
    assert ran["measured"]["peak"] == found["peak"]


def test_it_is_measured_anew_for_another_budget(model: str) -> None:
    search = ("--time-limit", "1", "--solver", "auto", "--split")
    call("optimize", model, "--budget", "60%", *search)
    second = call("optimize", model, "--budget", "50%", *search)
    assert "measured with another --split" in second.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("profile", "--split", "40%", "--compile"), "--split and --compile are not measured together"),
        (
            ("profile", "--split", "40%", "--gpu", "a100"),
            "--split measures pieces",
        ),
        (("profile", "--split", "lots"), "lots"),
        (("optimize", "--split", "--gpu", "a100"), "--split needs a --budget"),
    ],
)
def test_what_does_not_go_with_it(model: str, words: tuple[str, ...], line: str) -> None:
    assert line in call(words[0], model, *words[1:], status=2).stderr
