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
from trainer_scripts import CONFIG, LLAMA, LOOP, SCRIPT

QUANTISED = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

def quantised():
    in_4_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(
        "model", dtype=torch.float32, quantization_config=in_4_bits, device_map="auto"
    )
    model = prepare_model_for_kbit_training(model)
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0))
"""
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


def the_same(answer: dict[str, Any], wanted: dict[str, Any], time: float = 1e-9) -> None:
    """time: how close the times must be."""
    for key, rel in (("baseline_peak", 1e-9), ("time", time)):
        found = [row[key] for row in answer["batches"]]
        assert found == pytest.approx([row[key] for row in wanted["batches"]], rel=rel), key


@pytest.mark.scripts
@pytest.mark.parametrize("own_loss", [False, True])
def test_a_loop_of_accelerate_is_sized_as_its_configuration(
    own_loss: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with its own loss, which is here what the model computes itself, with another view."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    # A configuration is sized without a cache of keys and values, which a loop's model fills by default.
    Path("model/config.json").write_text(json.dumps({**CONFIG, "use_cache": False}))
    Path("train.py").write_text(LOOP.replace("OWN_LOSS", str(own_loss)))
    answer, said = sized("train.py", "--script-args", "--batch 4")
    assert "from train.py (a script of accelerate, up to its first backward()): micro-batch 4" in said
    assert "accumulation 3, bf16, optimizer AdamW" in said
    options = ("--batch", "4", "--accumulate", "3", "--autocast", "bf16", "--seq-len", "32")
    the_same(answer, sized("model/config.json", *options)[0], 0.01 if own_loss else 1e-9)


@pytest.mark.scripts
def test_weights_in_4_bits_are_sized_as_their_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("transformers", "peft", "bitsandbytes"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(LLAMA))
    made = 'AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).to("cuda").cuda()'
    assert made in SCRIPT
    Path("train.py").write_text(QUANTISED + SCRIPT.replace(made, "quantised()"))
    answer, _said = sized("train.py")
    options = ("--lora", "r=4", "--quantize", "nf4-nested", "--seq-len", "32", *OF_SCRIPT)
    the_same(answer, sized("model/config.json", *options)[0])


@pytest.mark.parametrize(
    ("model", "words", "line"),
    [
        ("train.py", "'a", '--script-args "\'a" is no command line: No closing quotation'),
        (
            "model.py",
            "--x 1",
            "--script-args is for scripts of transformers' Trainer and of accelerate: leave it out",
        ),
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
