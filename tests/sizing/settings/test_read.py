"""Files of other tools: whose they are, what they say of a run, and what in them is not counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.files.documents import write_document
from memplan.sizing.settings.read import is_settings, read_settings
from memplan.sizing.settings.settings import Settings

AXOLOTL = {
    "base_model": "tiny/llama", "model_type": "LlamaForCausalLM", "micro_batch_size": 2,
    "gradient_accumulation_steps": 4, "sequence_len": 512, "adapter": "qlora", "lora_r": 32,
    "lora_target_linear": True, "load_in_4bit": True, "optimizer": "paged_adamw_8bit", "bf16": "auto",
    "gradient_checkpointing": True, "flash_attention": True, "learning_rate": 0.0002,
}  # fmt: skip
TRL = {
    "model_name_or_path": "tiny/llama", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
    "use_peft": True, "lora_target_modules": ["model.q_proj", "v_proj"], "max_length": 256,
    "optim": "adamw_torch",
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "tiny/llama", "finetuning_type": "lora", "lora_rank": 8,
    "lora_target": "q_proj,v_proj",
    "quantization_bit": 4, "cutoff_len": 256, "bf16": True,
}  # fmt: skip
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "train_batch_size": 64,
    "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"},
    },
}  # fmt: skip
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16",
    "num_processes": 4, "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_offload_params": True},
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(row: dict[str, Any], name: str = "run.yaml") -> Settings:
    write_document(row, Path(name))
    return read_settings(Path(name))[0]


def options(settings: Settings) -> dict[str, Any]:
    return {name: value for name, (value, _words) in settings.options.items()}


def test_axolotl_is_read() -> None:
    found = read(AXOLOTL)
    assert found.tool == "axolotl"
    assert options(found) == {
        "model": "tiny/llama", "batch": 2, "accumulate": 4, "length": 512, "lora": "r=32",
        "quantize": "nf4-nested", "optimizer": "adamw8bit", "autocast": "bf16", "dtype": "bfloat16",
        "attention": "sdpa",
    }  # fmt: skip
    assert "gradient checkpointing (a row of the other ways)" in found.said
    assert found.uncounted == ["optimizer paged_adamw_8bit: its states count as on the GPU"]


def test_trl_has_its_own_defaults() -> None:
    found = read(TRL)
    assert found.tool == "TRL"
    assert options(found) == {
        "model": "tiny/llama", "batch": 8, "accumulate": 2, "length": 256, "autocast": "bf16",
        "dtype": "float32", "lora": "r=16,targets=q_proj+v_proj", "optimizer": "adamw",
    }  # fmt: skip
    assert "quantize" not in options(read({**TRL, "use_bnb_nested_quant": True}))
    assert options(read({**TRL, "load_in_4bit": True}))["quantize"] == "nf4"
    half = options(read({**TRL, "dtype": "bfloat16", "fp16": True}))
    assert (half["dtype"], half["autocast"]) == ("bfloat16", "fp16")
    full = options(read({**TRL, "dtype": "auto", "bf16": False, "use_peft": False}))
    assert not {"dtype", "autocast", "lora"} & full.keys()


def test_llama_factory_is_read() -> None:
    found = read(FACTORY)
    assert found.tool == "LLaMA-Factory"
    assert options(found) == {
        "model": "tiny/llama", "length": 256, "autocast": "bf16", "dtype": "bfloat16",
        "lora": "r=8,targets=q_proj+v_proj", "quantize": "nf4-nested",
    }  # fmt: skip
    assert options(read({**FACTORY, "finetuning_type": "full", "quantization_bit": 8}))["dtype"] == "float32"
    assert read({**FACTORY, "finetuning_type": "freeze", "quantization_bit": 8}).uncounted == [
        "finetuning_type freeze", "quantization_bit 8",
    ]  # fmt: skip


def test_deepspeed_is_read() -> None:
    found = read(DEEPSPEED, "ds_config.json")
    assert options(found) == {"batch": 4, "accumulate": 2, "autocast": "bf16", "optimizer": "adamw"}
    assert (found.tool, found.sharded, found.processes) == ("DeepSpeed", "ZeRO-3", 8)
    assert "the optimizer offloaded (a plan may do so)" in found.said
    auto = {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "cpu_offload": True}}
    found = read(auto, "ds_config.json")
    assert (options(found), found.sharded, found.processes) == ({}, None, None)
    assert found.uncounted == ["ZeRO stage 2: ranks shard as stage 3 does, or one GPU has all"]
    assert found.said == ["the optimizer offloaded (a plan may do so)"]


def test_accelerate_is_read() -> None:
    found = read(ACCELERATE)
    assert (found.tool, found.sharded, found.processes) == ("accelerate", "FSDP", 4)
    assert options(found) == {"autocast": "bf16"}
    deepspeed = {"zero_stage": 3, "gradient_accumulation_steps": 4, "offload_param_device": "cpu"}
    row = {"distributed_type": "DEEPSPEED", "deepspeed_config": deepspeed, "mixed_precision": "fp8"}
    found = read({**ACCELERATE, **row})
    assert (options(found), found.sharded) == ({"accumulate": 4}, "ZeRO-3")
    assert found.said[-1] == "weights offloaded (a plan may do so)"
    assert found.uncounted == ["mixed_precision fp8"]
    no_shard = {**ACCELERATE, "fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}}
    assert read(no_shard).sharded is None


def test_yaml_of_pyyaml_with_its_booleans_is_read() -> None:
    Path("run.yaml").write_text("mixed_precision: 'no'\ndistributed_type: 'NO'\nuse_cpu: false\n")
    assert options(read_settings(Path("run.yaml"))[0]) == {}
    Path("run.yaml").write_text("base_model: a/b\nbf16: yes\nfp16:\nfsdp:\nmicro_batch_size: 1\n")
    assert options(read_settings(Path("run.yaml"))[0])["autocast"] == "bf16"


def test_a_file_that_another_names_is_read_too() -> None:
    write_document(DEEPSPEED, Path("zero3.json"))
    write_document({**AXOLOTL, "deepspeed": "zero3.json"}, Path("run.yaml"))
    assert [one.tool for one in read_settings(Path("run.yaml"))] == ["axolotl", "DeepSpeed"]
    found = read({**AXOLOTL, "deepspeed": "zero4.json"})
    assert "zero4.json: no such file" in found.uncounted


def test_files_that_a_named_file_names_are_read_too() -> None:
    write_document(DEEPSPEED, Path("zero3.json"))
    named = {"deepspeed_config": {"deepspeed_config_file": "zero3.json"}}
    write_document({"distributed_type": "DEEPSPEED", **named}, Path("accelerate.yaml"))
    write_document({**AXOLOTL, "deepspeed": "accelerate.yaml"}, Path("run.yaml"))
    assert [one.tool for one in read_settings(Path("run.yaml"))] == ["axolotl", "accelerate", "DeepSpeed"]


def test_files_that_name_each_other_are_one_line() -> None:
    named = {"deepspeed_config": {"deepspeed_config_file": "run.yaml"}}
    write_document({"distributed_type": "DEEPSPEED", **named}, Path("accelerate.yaml"))
    with pytest.raises(InputError, match=r"^run.yaml names accelerate.yaml, which names run.yaml: "):
        read({**AXOLOTL, "deepspeed": "accelerate.yaml"})
    with pytest.raises(InputError, match=r"^own.yaml names own.yaml: name no file that leads back"):
        read({**AXOLOTL, "deepspeed": "own.yaml"}, "own.yaml")


def test_what_matters_and_is_not_counted_is_named() -> None:
    found = read({**AXOLOTL, "liger_cross_entropy": True, "rl": "dpo", "lora_modules_to_save": ["lm_head"]})
    assert {"liger_cross_entropy", "rl", "lora_modules_to_save"} <= {*found.uncounted}
    assert "optim lomo" in read({**TRL, "optim": "lomo"}).uncounted
    assert "adapter llama-adapter" in read({**AXOLOTL, "adapter": "llama-adapter"}).uncounted
    (odd,) = (one for one in read({**TRL, "lora_target_modules": ".*proj$"}).uncounted)
    assert odd == "lora_target_modules .*proj$: all linear layers are counted"


def test_a_key_close_to_one_that_is_read_is_asked_for() -> None:
    row = {**AXOLOTL, "micro_batch_sise": 4, "sequence_length": 12}
    del row["micro_batch_size"]
    assert "micro_batch_sise (is it micro_batch_size?)" in read(row).uncounted


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            {**AXOLOTL, "micro_batch_size": "two"},
            "run.yaml: micro_batch_size is 'two', not an integer from 1 to 10^12",
        ),
        ({**AXOLOTL, "lora_r": 0}, "run.yaml: lora_r is 0, not an integer from 1 to 10^12"),
        ({**AXOLOTL, "lora_r": "9" * 5000}, "9', not an integer from 1 to 10^12"),
        ({**AXOLOTL, "lora_r": 10**400}, "0, not an integer from 1 to 10^12"),
        ({**AXOLOTL, "flash_attention": "maybe"}, "run.yaml: flash_attention is 'maybe', not true or false"),
        ({**AXOLOTL, "base_model": 7}, "run.yaml: base_model is 7, not a text"),
        ({**TRL, "lora_target_modules": 3}, "run.yaml: lora_target_modules is 3, not a list of names"),
        ({"learning_rate": 1}, "run.yaml: is not a file of training settings: none of its keys is known"),
        ({"format": "plan-graph/1"}, "run.yaml: is not a file of training settings: it is a graph"),
        ({"model_type": "gpt2"}, "it is a configuration of Hugging Face"),
    ],
)
def test_a_value_of_another_kind_is_one_line(row: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        read(row)
    assert line in str(caught.value)


def test_other_files_are_no_settings() -> None:
    Path("config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    assert not is_settings(Path("config.json"))
    assert not is_settings(Path("model.py"))
    assert not is_settings(Path("absent.yaml"))
    Path("list.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match=r"list\.yaml: is not a file of training settings: it has no keys"):
        read_settings(Path("list.yaml"))
    Path("lfs.yaml").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(InputError, match="git lfs pull"):
        read_settings(Path("lfs.yaml"))
