"""memplan.size: the answers of `plan size` in Python, and what a call can have wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.sizing.size import in_python
from torch import nn

MODEL = """
import torch
from torch import nn

def build(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(2))), (torch.ones(batch, 256),), torch.sum
"""
FEW: dict[str, Any] = {"budget": 60_000_000, "batch": [8, 4096], "solver": "store-all"}


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)


def build(batch: int = 8) -> tuple[nn.Module, tuple[torch.Tensor, ...], Any]:
    layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()) for _ in range(2))
    return nn.Sequential(*layers), (torch.ones(batch, 256),), torch.sum


def printed(gpu: str, *more: str) -> dict[str, Any]:
    words = ["size", "model.py", "--gpu", gpu, "--solver", "store-all", "--json", *more]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_file_and_a_function_have_the_figures_of_the_command() -> None:
    expected = printed("rtx3060", "--budget", "60000000", "--batch", "8,4096")
    for what in ("model.py", Path("model.py"), build):
        answer = memplan.size(what, "rtx3060", **FEW)
        assert {**json.loads(json.dumps(answer.document())), "page": None, "command": "size"} == expected
        assert (answer.fits, answer.batch, answer.interrupted) == (True, 4096, False)
        assert str(answer).startswith(expected["answer"])


def test_several_gpus_have_a_row_each_and_a_page() -> None:
    prices = {"rtx3060": 0.1, "a100": 1.5}
    answer = memplan.size("model.py", ["rtx3060", "a100"], batch=8, price=prices, solver="store-all")
    expected = printed("rtx3060,a100", "--batch", "8", "--price", "rtx3060=0.1,a100=1.5")
    assert {**json.loads(json.dumps(answer.document())), "page": None, "command": "size"} == expected
    assert [found.preset.name for found in answer.results] == ["rtx3060", "a100"]
    assert (answer.fits, answer.batch) == (True, None)
    assert repr(answer) == "<SizeAnswer of model: fits 2 of 2 GPUs>"
    answer.save("size.html")
    assert "will it fit?" in Path("size.html").read_text()
    assert "rtx3060" in answer._repr_html_()
    with pytest.raises(memplan.InputError, match=r"size\.txt: the suffix must be \.html"):
        answer.save("size.txt")


def test_what_does_not_fit_is_an_answer() -> None:
    answer = memplan.size(build, "rtx3060", budget="9MB", batch=8, solver="store-all")
    assert (answer.fits, answer.batch) == (False, None)
    assert repr(answer).startswith("<SizeAnswer: no: batch 8 does not fit within")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"seq_len": 5}, "seq_len= is for a Hugging Face configuration: a model's code decides it itself"),
        ({"quantize": "nf4"}, 'quantize= freezes the weights: add lora="r=16", whose adapters are trained'),
        ({"quantize": "nf5", "lora": "r=8"}, "quantize='nf5': choose one of nf4, nf4-nested"),
        ({"lora": "r=x"}, "'r=x' is not a rank: write r=16"),
        ({"ranks": 2}, 'ranks=2: give their network too: link="nvlink|'),
        ({"link": "pcie4"}, "link= is of several GPUs: give ranks= too"),
        ({"param_dtype": "float16"}, "param_dtype='float16': choose one of bfloat16"),
        ({"reduce_dtype": "half"}, "reduce_dtype='half': choose one of bfloat16, float32"),
        (
            {"param_dtype": "bfloat16"},
            "param_dtype= is of several GPUs: give ranks= too; one GPU computes in",
        ),
        ({"master_weights": True}, "batch 1: master_weights=: no weight that is trained is bfloat16 or"),
        ({"master_weights": True, "optimizer": "none"}, "master_weights= goes with optimizer=: without"),
        (
            {"ranks": 2, "link": "pcie4", "accumulate": 2},
            "ranks= counts one micro-batch per update: omit",
        ),
        ({"ranks": 2, "link": "pcie4", "node_ranks": 2}, "node_ranks= divides a host: give host=, lanes= or"),
        ({"budget": "60%"}, "'60%': a percentage is of the baseline's peak"),
        ({"reserve": "100GB"}, "reserve=100,000,000,000 B leaves nothing of"),
        ({"batch": 0}, "'0' is not a list of batches"),
        ({"global_batch": 4, "batch": 2}, "global_batch= finds the micro-batch and its number: omit batch="),
        ({"price": {"t4": 1}}, "price= names t4, which is none of the GPUs of gpu="),
        ({"optimizer": "adamm"}, "optimizer='adamm': choose one of"),
        ({"update": "late"}, "update='late': choose one of in-backward, after"),
        ({"accumulate": 0}, "accumulate=0: give an integer, 1 or more"),
        ({"time_limit": -1}, "time_limit=-1: give seconds, above 0 and finite"),
        ({"solver": "autoo"}, "unknown solver 'autoo': did you mean auto"),
        ({"attention": "sdpa"}, "batch 1: attention= is for models of transformers"),
        ({"machine": "rtx3060", "host": "8GB"}, "machine= says what host= and lanes= say: give one"),
    ],
)
def test_a_wrong_call_is_one_line_in_the_spelling_of_python(options: dict[str, Any], line: str) -> None:
    with pytest.raises(memplan.InputError) as caught:
        memplan.size(build, "rtx3060", **options)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("modle.py", "modle.py: no such file"),
        (nn.Linear(2, 2), "the model is a Linear: give a function that builds it and an example batch"),
        (7, "the model is a int: give a file, or a function that builds it"),
        (lambda size: size, "must be callable without arguments"),
    ],
)
def test_what_is_no_model_is_refused(what: Any, line: str) -> None:
    with pytest.raises(memplan.InputError) as caught:
        memplan.size(what, "rtx3060")
    assert line in str(caught.value)


def test_options_of_other_commands_keep_their_spelling() -> None:
    assert (
        in_python("hf download gpt2 config.json --local-dir gpt2")
        == "hf download gpt2 config.json --local-dir gpt2"
    )
    assert in_python("host: --host 64GB says it") == 'host: host="64GB" says it'
    assert in_python("give --ranks 8 or --gpu mine.yaml") == 'give ranks=8 or gpu="mine.yaml"'


def test_expandable_segments_lower_the_high_end_of_a_loop_without_a_plan() -> None:
    few: dict[str, Any] = {"batch": 11_000, "solver": "store-all"}
    usual = memplan.size(build, "rtx3060", **few)
    expandable = memplan.size(build, "rtx3060", **few, expandable_segments=True)
    before, after = (one.results[0].spans.get(11_000) for one in (usual, expandable))
    assert before is not None
    assert after is not None
    assert after.high < before.high
    assert (after.low, after.expected) == (before.low, before.expected)
    assert "with expandable segments, without a plan" in str(expandable)
    assert "expandable" not in str(usual)
    assert [one.document()["expandable_segments"] for one in (usual, expandable)] == [False, True]
    by_command = printed("rtx3060", "--batch", "11000", "--expandable-segments")
    assert by_command["batches"] == json.loads(json.dumps(expandable.document()["batches"]))
