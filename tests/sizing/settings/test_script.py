"""`plan size train.py` answers as for the configuration of its model, with the script's arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import memplan
import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from trainer_scripts import CONFIG, SCRIPT

OF_SCRIPT = ("--batch", "2", "--accumulate", "3", "--autocast", "bf16", "--optimizer", "adamw8bit")


def sized(*words: str) -> tuple[dict[str, Any], str]:
    options = ["--gpu", "rtx3060", "--solver", "store-all", "--time-limit", "1", "--no-cache", "--json"]
    done = CliRunner().invoke(main, ["size", *words, *options])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.scripts
def test_a_script_is_sized_as_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(CONFIG))
    Path("train.py").write_text(SCRIPT)
    answer, said = sized("train.py")
    assert "from train.py (a script of Trainer, up to train()): micro-batch 2, accumulation 3, bf16" in said
    assert "optimizer adamw_bnb_8bit, gradient checkpointing" in said
    wanted, _said = sized("model/config.json", "--seq-len", "32", *OF_SCRIPT)
    assert [row["baseline_peak"] for row in answer["batches"]] == [
        row["baseline_peak"] for row in wanted["batches"]
    ]
    assert [row["time"] for row in answer["batches"]] == pytest.approx(
        [row["time"] for row in wanted["batches"]]
    )


@pytest.mark.parametrize(
    ("model", "words", "line"),
    [
        ("train.py", "'a", '--script-args "\'a" is no command line: No closing quotation'),
        ("model.py", "--x 1", "--script-args is for scripts of transformers' Trainer: leave it out"),
    ],
)
def test_a_command_line_that_can_not_be_is_one_line(
    model: str, words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("model.py").write_text("def build(): ...")
    done = CliRunner().invoke(main, ["size", model, "--gpu", "rtx3060", "--script-args", words])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"plan: error: {line}")
    with pytest.raises(InputError) as refused:
        memplan.size(model, "rtx3060", script_args=words)
    assert str(refused.value) == line.replace("--script-args", "script_args=")
