"""Settings of files as options of sizing: which of two holds, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import memplan
import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import write_document
from memplan.graphs.machines.network_request import NetworkRequest
from memplan.sizing.request import SizeRequest
from memplan.sizing.settings.apply import with_settings
from memplan.sizing.subject import LoopOptions

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TRL = {
    "model_name_or_path": "config.json", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4,
    "use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear", "max_length": 32, "dtype": "bfloat16",
}  # fmt: skip
FSDP = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {}, "mixed_precision": "fp16"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    write_document(TRL, Path("trl.yaml"))
    write_document(FSDP, Path("accelerate.yaml"))
    Path("ds_config.json").write_text('{"zero_optimization": {"stage": 2}}')


def applied(request: SizeRequest, *paths: str, given: tuple[str, ...] = ()) -> tuple[SizeRequest, list[str]]:
    notes = list[str]()
    return with_settings(request, [Path(one) for one in paths], given, notes.append), notes


def test_the_model_may_be_the_file() -> None:
    request, notes = applied(SizeRequest("trl.yaml", "t4"))
    loop = LoopOptions(lora="r=4", autocast="bf16", accumulate=4)
    assert (request.model, request.batches, request.length, request.loop) == ("config.json", [2], 32, loop)
    assert notes == [
        "from trl.yaml (TRL): model config.json, micro-batch 2, accumulation 4, 32 tokens a sample, bf16, "
        "weights in bfloat16, LoRA r=4"
    ]


def test_an_option_holds_against_a_file_and_it_is_said() -> None:
    asked = SizeRequest("trl.yaml", "t4", batches=[8], length=32)
    request, notes = applied(asked, given=("batch", "length"))
    assert (request.batches, request.length, request.loop.accumulate) == ([8], 32, 4)
    assert notes[1:] == ["--batch 8 holds, not micro-batch 2 of trl.yaml"]


def test_of_two_files_the_first_holds() -> None:
    request, notes = applied(SizeRequest("config.json", "t4"), "trl.yaml", "accelerate.yaml")
    assert request.loop.autocast == "bf16"
    assert "bf16 of trl.yaml holds, not fp16 of accelerate.yaml" in notes


def test_ranks_of_a_file_count_with_a_link() -> None:
    request, notes = applied(SizeRequest("config.json", "t4"), "accelerate.yaml")
    assert request.network.ranks is None
    alone = "FSDP over 4 processes: one GPU alone is counted; "
    assert notes[-1] == f"{alone}--ranks 4 --link pcie4 (or nvlink) shards over all"
    linked = SizeRequest("config.json", "t4", network=NetworkRequest(link="pcie4"))
    request, notes = applied(linked, "accelerate.yaml", given=("link",))
    assert (request.network.ranks, len(notes)) == (4, 1)
    request, notes = applied(linked, "trl.yaml", "accelerate.yaml", given=("link",))
    assert request.loop.accumulate == 1
    assert "accumulation 4 is not counted: ranks have one micro-batch per update" in notes


def test_what_can_not_be_had_together_is_said() -> None:
    asked = SizeRequest("config.json", "t4", loop=LoopOptions(total=16))
    request, notes = applied(asked, "trl.yaml", given=("total",))
    assert (request.batches, request.loop.accumulate) == (None, 1)
    assert [one for one in notes if one.startswith("--global-batch")] == [
        "--global-batch 16 holds, not batch 2",
        "--global-batch 16 holds, not accumulate 4",
    ]
    request, notes = applied(SizeRequest("model.py", "t4"), "trl.yaml")
    assert (request.model, request.length, request.dtype) == ("model.py", None, None)
    assert notes[-1] == "the model's code decides itself, not the file: length 32, dtype bfloat16"


def test_a_file_without_a_model_names_the_command() -> None:
    with pytest.raises(InputError) as caught:
        applied(SizeRequest("ds_config.json", "t4"))
    assert str(caught.value) == (
        "ds_config.json: is DeepSpeed's, and names no model: plan size config.json --gpu t4 "
        "--train-config ds_config.json"
    )


@pytest.mark.scripts
def test_the_answer_is_that_of_the_options() -> None:
    def printed(*words: str) -> dict[str, Any]:
        more = ["--gpu", "rtx3060", "--solver", "store-all", "--json"]
        result = CliRunner().invoke(main, ["size", *words, *more])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    options = ["--batch", "2", "--accumulate", "4", "--lora", "r=4", "--seq-len", "32", "--dtype", "bf16"]
    expected = printed("config.json", *options, "--autocast", "bf16")
    assert printed("trl.yaml") == printed("config.json", "--train-config", "trl.yaml") == expected
    answer = memplan.size("config.json", "rtx3060", train_config="trl.yaml", solver="store-all")
    assert {"command": "size", **json.loads(json.dumps(answer.document())), "page": None} == expected
    assert answer.notes[0].startswith("from trl.yaml (TRL): ")
    four = memplan.size("trl.yaml", "rtx3060", batch=4, solver="store-all")
    assert (four.batch, four.notes[1]) == (4, "batch=4 holds, not micro-batch 2 of trl.yaml")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trl.yml"], "trl.yml: no such file"),
        (["config.json", "--train-config", "trl.yml"], "trl.yml: no such file"),
        (["config.json", "--train-config", "config.json"], "it is a configuration of Hugging Face"),
    ],
)
def test_a_file_that_is_not_there_is_one_line(words: list[str], line: str) -> None:
    result = CliRunner().invoke(main, ["size", *words, "--gpu", "rtx3060"])
    assert result.exit_code == 2
    assert line in result.stderr
