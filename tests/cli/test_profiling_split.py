"""`--split`: operations in pieces from the command line, to a schedule that runs."""

from __future__ import annotations

import json
import re
import sys
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


def test_exact_pieces_run_with_eagers_bits(model: str) -> None:
    search = ("--budget", "70%", "--time-limit", "2", "--solver", "auto")
    said = call("optimize", model, *search, "--split-exact").stdout
    assert "bit by bit as the whole" in said
    source = json.loads(Path("words.graph.json").read_text())["source"]
    assert source["exact"] is True
    ran = call("run", "words.schedule.json", "--model", model).stdout
    assert "tensors bitwise equal to eager" in ran
    again = call("optimize", model, *search, "--split-exact").stderr
    assert "measured before" in again


@pytest.mark.scripts
@pytest.mark.parametrize("words", [("--budget", "35%"), ("--budget", "35%", "--split-exact")])
def test_the_command_that_a_refusal_names_works(
    model: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["optimize", model, *words, "--time-limit", "2"]
    monkeypatch.setattr(sys, "argv", ["plan", *asked])
    refusal = call(*asked, status=3).stderr
    found = re.search(r"less suffices with --split from about .* \((\d+)%\): plan (.*--split)", refusal)
    assert found is not None
    assert int(found[1]) < 35
    assert "in pieces" in call(*found[2].split()).stdout


@pytest.mark.scripts
def test_a_refusal_of_pieces_is_a_share_of_the_whole_peak(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["optimize", model, "--budget", "5%", "--split", "--time-limit", "2"]
    monkeypatch.setattr(sys, "argv", ["plan", *asked])
    refusal = call(*asked, status=3).stderr
    found = re.search(r"(\d+)% of the baseline's peak .*; try: plan (.*)", refusal)
    assert found is not None
    assert int(found[1]) < 35
    call(*found[2].split())


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
        (("optimize", "--split", "--split-exact", "--budget", "40%"), "give one"),
        (("profile", "--split", "40%", "--split-exact", "40%"), "give one"),
    ],
)
def test_what_does_not_go_with_it(model: str, words: tuple[str, ...], line: str) -> None:
    assert line in call(words[0], model, *words[1:], status=2).stderr


@pytest.mark.parametrize("option", ["--split", pytest.param("--split-exact", marks=pytest.mark.scripts)])
def test_one_profile_has_a_plan_for_every_budget(model: str, option: str) -> None:
    profiled = call("profile", model, option, "any", "-o", "g.json").stdout
    assert "split 1 " in profiled
    whole = json.loads(call("profile", model, "-o", "w.json", "--json").stdout)["baseline_peak"]
    peaks: list[int] = []
    for share in ("100%", "60%", "35%") if option == "--split" else ("100%", "60%"):
        found = json.loads(call("solve", "g.json", "--budget", share, "-o", "s.json", "--json").stdout)
        assert found["baseline_peak"] == whole
        ran = json.loads(call("run", "s.json", "--model", model, "--json").stdout)
        assert ran["equal"] is True
        assert ran["measured"]["peak"] == found["peak"]
        peaks.append(found["peak"])
    assert peaks[-1] <= 0.62 * whole
    assert peaks == sorted(peaks, reverse=True)
    assert "of the baseline's peak" in call("solve", "g.json", "--budget", "5%", status=3).stderr
