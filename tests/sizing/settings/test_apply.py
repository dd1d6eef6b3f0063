"""Settings of files as options of sizing: which of two holds, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
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


def test_deepspeed_holds_weights_in_16_bits_with_masters() -> None:
    Path("ds_config.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    masters = LoopOptions(master_weights=True)
    request, notes = applied(SizeRequest("config.json", "t4"), "ds_config.json")
    assert (request.dtype, request.loop) == ("bfloat16", masters)
    assert notes[-1] == (
        "DeepSpeed holds weights and gradients in bfloat16, and float32 masters in the optimizer"
    )
    # It casts the model, whatever a trainer's file says of the weights.
    write_document({**TRL, "use_peft": False, "dtype": "float32"}, Path("trl.yaml"))
    request, _notes = applied(SizeRequest("trl.yaml", "t4"), "ds_config.json")
    assert (request.dtype, request.loop) == ("bfloat16", LoopOptions(master_weights=True, accumulate=4))
    by_accelerate = {"distributed_type": "DEEPSPEED", "mixed_precision": "fp16", "deepspeed_config": {}}
    write_document(by_accelerate, Path("accelerate.yaml"))
    request, _notes = applied(SizeRequest("config.json", "t4"), "accelerate.yaml")
    assert (request.dtype, request.loop) == ("float16", masters)
    autocast = LoopOptions(autocast="bf16")
    for asked, given in (
        (SizeRequest("config.json", "t4", dtype="float32"), ("dtype",)),
        (SizeRequest("config.json", "t4", optimizer="none"), ("optimizer",)),
        (SizeRequest("model.py", "t4"), ()),
    ):
        request, _notes = applied(asked, "ds_config.json", given=given)
        assert (request.dtype, request.loop) == (asked.dtype, autocast)


def test_fsdp_gathers_float32_shares_in_bfloat16() -> None:
    write_document({**FSDP, "mixed_precision": "bf16"}, Path("accelerate.yaml"))
    linked = SizeRequest("config.json", "a100", network=NetworkRequest(link="pcie4"))
    policy = LoopOptions(autocast="bf16", param_dtype="bfloat16")
    request, notes = applied(linked, "accelerate.yaml", given=("link",))
    assert (request.dtype, request.loop) == ("float32", policy)
    assert notes[-1].startswith("FSDP has float32 shares, gathers weights and scatters gradients in bfloat16")
    request, _notes = applied(replace(linked, model="model.py"), "accelerate.yaml", given=("link",))
    assert (request.dtype, request.loop) == (None, policy)
    # One GPU has nothing to gather, weights that are bfloat16 neither.
    autocast = LoopOptions(autocast="bf16")
    request, _notes = applied(SizeRequest("config.json", "a100"), "accelerate.yaml")
    assert (request.dtype, request.loop) == (None, autocast)
    low = replace(linked, dtype="bfloat16")
    assert applied(low, "accelerate.yaml", given=("link", "dtype"))[0].loop == autocast


@pytest.mark.scripts
def test_files_of_deepspeed_and_fsdp_have_their_bytes() -> None:
    def sized(**options: Any) -> dict[str, Any]:
        more: dict[str, Any] = {"batch": 2, "seq_len": 32, "solver": "store-all", **options}
        return memplan.size("config.json", "a100", **more).document()

    Path("ds_config.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    masters = sized(dtype="bfloat16", master_weights=True)
    assert sized(train_config="ds_config.json")["batches"] == masters["batches"]
    write_document({**FSDP, "mixed_precision": "bf16"}, Path("accelerate.yaml"))
    found = sized(train_config="accelerate.yaml", link="pcie4", solver="fsdp")
    ranks: dict[str, Any] = {"ranks": 4, "link": "pcie4", "solver": "fsdp", "dtype": "float32"}
    expected = sized(**ranks, param_dtype="bfloat16", autocast="bf16")
    assert found["batches"][0]["policies"] == expected["batches"][0]["policies"]
    assert (found["param_dtype"], found["shares"]) == ("bfloat16", expected["shares"])


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
