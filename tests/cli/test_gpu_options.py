"""--gpu with --host and --lanes, GPUs described in a file, and dtypes that a GPU has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph
from memplan.graphs.machines.presets import find_preset
from not_none import not_none

MODEL = """
import torch
from torch import nn


def build(batch=4):
    return nn.Linear(8, 8), (torch.ones(batch, 8),), torch.sum


def half(batch=4):
    return nn.Linear(8, 8).bfloat16(), (torch.ones(batch, 8).bfloat16(),), torch.sum
"""
CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 16, "n_head": 2,
    "n_positions": 16, "vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SIZE = ("size", "model.py", "--solver", "store-all", "--batch", "2")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("config.json").write_text(json.dumps(CONFIG))


def plan(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_machine_by_name_in_a_host_of_ones_own_and_back_from_its_file() -> None:
    result = plan("machine", "rtx4090", "--host", "64GB", "--lanes", "8", "-o", "mine.yaml", "--json")
    shown = json.loads(result.stdout)
    assert shown["machine"]["host"] == {"capacity": 64 * 10**9}
    full = not_none(find_preset("rtx4090").machine.links.d2h).rate
    assert shown["machine"]["links"]["d2h"] == full / 2
    again = find_preset("mine.yaml")
    assert again.gpu == find_preset("rtx4090").gpu
    assert not_none(again.machine.links.d2h).rate == full / 2
    assert again.machine.host_capacity == 64 * 10**9


def test_an_estimate_has_the_machine_that_was_described() -> None:
    described = ("--host", "64GB,4cores,40GB/s", "--lanes", "4")
    result = plan("profile", "model.py", "--estimate", "--gpu", "a100", *described, "-o", "g.json")
    assert result.exit_code == 0, result.stderr
    machine = not_none(load_graph(Path("g.json")).machine)
    assert machine.host_capacity == 64 * 10**9
    assert machine.updates.host == 1.1e9
    assert not_none(machine.links.h2d).rate == not_none(find_preset("a100").machine.links.h2d).rate / 4


def test_sizes_for_a_gpu_of_a_file_and_for_a_host() -> None:
    plan("machine", "t4", "-o", "mine.yaml")
    known = json.loads(plan(*SIZE, "--gpu", "Tesla T4", "--json").stdout)
    same = json.loads(plan(*SIZE, "--gpu", "mine.yaml", "--json").stdout)
    assert same["batches"] == known["batches"]
    assert (known["host"], known["gpu"], same["machine"]) == (64_000_000_000, "T4", "mine")
    assert known["budget"] + known["reserve"] == find_preset("t4").gpu.usable
    hosted = plan(*SIZE, "--gpu", "t4", "--host", "64GB")
    assert "64,000,000,000 B" in hosted.stdout
    assert "assumed: --host says what yours has" in plan(*SIZE, "--gpu", "t4").stdout


def test_a_paper_s_machine_has_no_more_to_use_than_its_gpu() -> None:
    found = json.loads(plan(*SIZE, "--gpu", "rtx3060", "--json").stdout)
    assert found["budget"] + found["reserve"] == find_preset("rtx3060").gpu.usable < 12 * 2**30


@pytest.mark.scripts
def test_a_dtype_that_the_gpu_has_not() -> None:
    words = ("size", "config.json", "--solver", "store-all", "--batch", "2", "--dtype", "bfloat16")
    refused = plan(*words, "--gpu", "t4,a100")
    assert refused.exit_code == 2
    assert "T4 has no bfloat16: its compute capability is 7.5" in refused.stderr
    assert plan(*words, "--gpu", "a100").exit_code == 0
    told = plan("size", "model.py:half", "--solver", "store-all", "--batch", "2", "--gpu", "v100")
    assert told.exit_code == 0
    assert "warning: V100 has no bfloat16" in told.stderr
    profiled = plan("profile", "model.py:half", "--estimate", "--gpu", "v100", "-o", "g.json")
    assert "warning: V100 has no bfloat16" in profiled.stderr
    assert "bfloat16" not in plan("profile", "model.py:half", "--estimate", "--gpu", "a100").stderr


@pytest.mark.scripts
def test_with_all_gpus_those_without_the_dtype_are_left_out() -> None:
    words = ("--solver", "store-all", "--batch", "2", "--dtype", "bfloat16", "--gpu", "all", "--json")
    result = plan("size", "config.json", *words)
    assert result.exit_code == 0, result.stderr
    names = {one["gpu"] for one in json.loads(result.stdout)["gpus"]}
    assert "T4" not in names
    assert {"L4", "RTX 5090", "B200"} <= names
    assert "left out, since they have no bfloat16: " in result.stderr
    assert "T4" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("machine", "--host", "64GB"), "--host and --lanes go with NAME"),
        (("machine", "t4", "--lanes", "3"), "'3' is not one of"),
        (("machine", "gh200", "--lanes", "8"), "joined to its host by NVLink"),
        (("machine", "t4", "--host", "64"), "write 64GB"),
        (("machine", "t4", "--host", "lots"), "'lots' is not a number of bytes"),
        (("profile", "model.py", "--host", "64GB"), "describe the machine of --gpu"),
        (("profile", "model.py", "--estimate", "--gpu", "MI300X"), "MI300X is made by AMD"),
        ((*SIZE, "--gpu", "M3 Max"), "M3 Max is made by Apple"),
        ((*SIZE, "--gpu", "t4", "--machine", "a100", "--host", "1TB"), "--machine says what --host"),
        ((*SIZE, "--gpu", "rtx 4077"), "plan machine rtx4070 -o mine.yaml"),
        ((*SIZE, "--gpu", "no.yaml"), "no.yaml: no such file"),
    ],
)
def test_what_can_t_be_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
