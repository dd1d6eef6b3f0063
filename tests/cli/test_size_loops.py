"""Options of `plan size` that change the loop: accumulation, adapters, autocast, attention; prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main

Plan = Callable[..., Result]

MODEL = """
import torch
from torch import nn

def build(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(4))), (torch.ones(batch, 256),), torch.sum

def norm(batch=8):
    model, inputs, loss = build(batch)
    return nn.Sequential(nn.BatchNorm1d(256), model), inputs, loss
"""
CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
WEIGHTS = 4 * 8 * (256 * 256 + 256)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("config.json").write_text(json.dumps(CONFIG))
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def sized(plan: Plan, *arguments: object, model: str = "model.py", gpu: str = "rtx3060") -> dict[str, Any]:
    result = plan("size", model, "--gpu", gpu, "--solver", "store-all", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def row(reported: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in reported["next_steps"]["rows"] if one["name"] == name)


# ── accumulation ────────────────────────────────────────────────────────────────────────────────────


def test_gradients_live_through_forward_in_all_rows(plan: Plan) -> None:
    """At a batch at which activations are most of it, each row takes the gradients' bytes more."""
    one, several = (sized(plan, "--batch", 8192, "--accumulate", steps) for steps in (1, 4))
    for name in ("as it is", "gradient checkpointing", "8-bit optimizer"):
        low = [row(reported, name)["needs"]["low"] for reported in (one, several)]
        assert low[1] >= low[0], name
    # The iteration's own gradients are freed as they are added: one of them is in both figures.
    more = row(several, "as it is")["needs"]["low"] - row(one, "as it is")["needs"]["low"]
    assert 0.8 * WEIGHTS < more <= WEIGHTS
    assert several["breakdown"]["all"]["gradients"] >= WEIGHTS
    assert several["breakdown"]["all"]["optimizer_states"] == one["breakdown"]["all"]["optimizer_states"]
    (last,) = several["batches"]
    assert last["gradient_accumulation_steps"] == 4
    assert last["samples_per_second"] == pytest.approx(4 * 8192 / last["time"])


def test_the_time_of_an_update_grows_by_micro_batches_without_the_step(plan: Plan) -> None:
    one, two, three, nine = (
        sized(plan, "--batch", 16, "--accumulate", steps)["batches"][0]["time"] for steps in (1, 2, 3, 9)
    )
    assert nine - three == pytest.approx(6 * (three - two))
    assert one < two < 2 * (three - two) + one


def test_the_answer_names_the_micro_batches(plan: Plan) -> None:
    words = ("--gpu", "v100", "--solver", "store-all", "--batch", 8, "--accumulate", 4)
    lines = plan("size", "model.py", *words).stdout.splitlines()
    assert lines[0].startswith("yes: batch 32 as 4 micro-batches of 8 fits a V100 16 GB as it is: ")
    assert "accumulate  4 micro-batches per update; times are of an update" in lines
    assert any(line.startswith("8 x 4  ") for line in lines)


@pytest.mark.scripts
@pytest.mark.parametrize("budget", ["24MB", "40MB", "1GB"])
def test_a_global_batch_is_the_best_of_all_divisors(plan: Plan, budget: str) -> None:
    total = 2 * 7 * 113
    reported = sized(plan, "--budget", budget, "--global-batch", total)
    divisors = [size for size in range(1, total + 1) if total % size == 0]
    rates: dict[int, float] = {}
    for size in divisors:
        words = ("--gpu", "rtx3060", "--solver", "store-all", "--json", "--budget", budget)
        alone = plan("size", "model.py", *words, "--batch", size, "--accumulate", total // size)
        document = json.loads(alone.stdout)
        (found,) = document["batches"]
        assert found["gradient_accumulation_steps"] * size == total
        if found["fits"]:
            rates[size] = found["samples_per_second"]
    best = reported["fastest_batch"]
    assert best["batch"] == max(rates, key=lambda size: (rates[size], -size))
    assert best["samples_per_second"] == pytest.approx(max(rates.values()))
    assert {one["batch"] for one in reported["batches"] if one["fits"]} == set(rates)
    assert best["time"] == pytest.approx(total / best["samples_per_second"])


def test_a_global_batch_starts_where_it_can(plan: Plan) -> None:
    reported = sized(plan, "--global-batch", 6, model="model.py:norm")
    assert [one["batch"] for one in reported["batches"]] == [2, 3, 6]


@pytest.mark.scripts
def test_a_global_batch_with_a_plan(plan: Plan) -> None:
    """A micro-batch that needs a plan is solved too, and the fastest is named."""
    words = ("--global-batch", 8192, "--budget", "45MB", "--time-limit", 3, "--json")
    result = plan("size", "model.py", "--gpu", "rtx3060", *words)
    reported = json.loads(result.stdout)
    planned = [one for one in reported["batches"] if one["planned"] and one["overhead"] > 0]
    assert planned
    best = reported["fastest_batch"]
    assert best["samples_per_second"] == max(one["samples_per_second"] or 0 for one in reported["batches"])
    for one in planned:
        assert one["needs"]["expected"] <= reported["budget"]


# ── what is trained ─────────────────────────────────────────────────────────────────────────────────


def test_adapters_change_all_rows_and_are_described(plan: Plan) -> None:
    whole, adapted = (sized(plan, "--batch", 8, *words) for words in ((), ("--lora", "r=4")))
    trained = 8 * 4 * (256 + 256)
    of = f"{trained:,} of {WEIGHTS // 4 + trained:,} weights are trained, 3.02%"
    assert adapted["lora"] == f"r=4 on 8 layers, 0, 2: {of}"
    for name in ("as it is", "gradient checkpointing"):
        assert row(adapted, name)["needs"]["low"] < 0.5 * row(whole, name)["needs"]["low"]
    states = adapted["breakdown"]["all"]["optimizer_states"]
    assert states == 2 * 4 * trained
    result = plan("size", "model.py", "--gpu", "v100", "--solver", "store-all", "--batch", 8, "--lora", "r=4")
    assert f"lora       {adapted['lora']}" in result.stdout.splitlines()


@pytest.mark.scripts
def test_autocast_and_attention(plan: Plan) -> None:
    words = ("--batch", 16, "--seq-len", 64)
    whole, half = (
        sized(plan, *words, *more, model="config.json", gpu="a100") for more in ((), ("--autocast", "bf16"))
    )
    one, other = whole["batches"][0], half["batches"][0]
    assert other["baseline_peak"] != one["baseline_peak"]
    assert half["breakdown"]["all"]["weights"] == whole["breakdown"]["all"]["weights"]
    eager, fused = (
        sized(plan, *words, "--attention", kind, model="config.json", gpu="a100")["batches"][0]
        for kind in ("eager", "sdpa")
    )
    assert eager["baseline_peak"] > fused["baseline_peak"]
    assert fused["baseline_peak"] == one["baseline_peak"]  # transformers' default


def test_autocast_is_that_of_a_model_file_that_says_so(plan: Plan) -> None:
    text = """
def build(batch=8):
    model, inputs, loss = own(batch)
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.model(x).sum()
    return Whole(), inputs
"""
    Path("own.py").write_text(MODEL.replace("def build", "def own").replace("= build", "= own") + text)
    words = ("--batch", 2**18)  # launches take no longer
    own = sized(plan, *words, model="own.py", gpu="a100")["batches"][0]
    asked = sized(plan, *words, "--autocast", "bf16", gpu="a100")["batches"][0]
    assert asked["baseline_peak"] == own["baseline_peak"]
    assert asked["time"] == pytest.approx(own["time"])
    assert asked["time"] < sized(plan, *words, gpu="a100")["batches"][0]["time"]


# ── prices ──────────────────────────────────────────────────────────────────────────────────────────


def test_samples_for_a_price(plan: Plan) -> None:
    reported = sized(plan, "--batch", 8, "--price", "0.5/h")
    rate = reported["fastest_batch"]["samples_per_second"]
    assert reported["price_per_hour"] == 0.5
    assert reported["samples_per_price"] == pytest.approx(rate * 3600 / 0.5)
    assert reported["answer"].endswith(" samples per 1.00")
    assert "samples per" not in sized(plan, "--batch", 8)["answer"]


def test_the_gpu_with_the_most_samples_for_its_price(plan: Plan) -> None:
    words = ("--solver", "store-all", "--batch", 8, "--price", "a100=3,t4=.0001/h")
    reported = json.loads(plan("size", "model.py", "--gpu", "t4,a100,v100", *words, "--json").stdout)
    assert reported["most_samples_for_the_price"] == "t4"
    prices = {one["machine"]: one["price_per_hour"] for one in reported["gpus"]}
    assert prices == {"t4": 0.0001, "a100": 3.0, "v100": None}
    lines = plan("size", "model.py", "--gpu", "t4,a100,v100", *words).stdout.splitlines()
    assert "most samples for the price  t4" in lines
    assert any("samples per 1.00" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--autocast", "bf16"], "T4 has no bfloat16: its compute capability is 7.5"),
        (["--lora", "r=0"], "'r=0' is not a rank: write r=16, or r=16,targets=q_proj+v_proj"),
        (["--lora", "r=4,targets=q"], "no linear layer named q to adapt: its linear layers are named 0, 2"),
        (["--attention", "eager"], "--attention is for models of transformers"),
        (["--attention", "flash"], "'flash' is not one of 'eager', 'sdpa'"),
        (["--accumulate", "0"], "0 is not in the range"),
        (["--global-batch", "8", "--accumulate", "2"], "omit --accumulate"),
        (["--global-batch", "8", "--batch", "2"], "omit --batch"),
        (["--price", "free"], "'free' is not a price per hour: write 1.20/h"),
        (["--price", "0"], "'0' is not a price per hour"),
        (["--price", "a100=1"], "--price names a100, which is none of the GPUs of --gpu"),
        (["--price", "1,2"], "names no GPU, and there are several"),
        (["--price", "t44=1"], "no GPU or machine named 't44' is known; close names: t4"),
    ],
)
def test_a_wrong_option_is_one_line(plan: Plan, words: list[str], line: str) -> None:
    result = plan("size", "model.py", "--gpu", "t4", *words)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
