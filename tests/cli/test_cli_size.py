"""`plan size`: batches and budgets of a model on a GPU that is not here, and what a call can have wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plug_ins
import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.cli.size import command
from memplan.graphs.machine import Machine
from memplan.graphs.machines.presets import find_preset, presets
from memplan.profiling.profile.estimates import Estimates
from memplan.sizing import alternatives
from memplan.sizing.estimate_range import LOOSE
from memplan.sizing.question import Room
from memplan.sizing.request import SizeRequest
from memplan.sizing.result import SizeResult
from memplan.sizing.search import SizeSearch
from memplan.sizing.trial import Known

Plan = Callable[..., Result]
KEPT = 8_519_680
"""What cuBLAS keeps of an RTX 3060."""
LITTLE = f"{2_300_000 + KEPT}"
"""A batch of 1 takes about 2.1 MB."""

MODEL = """
import torch
from torch import nn

def layers(*more):
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), *more, nn.Linear(256, 256), nn.GELU())

def build(batch=8):
    return layers(), (torch.ones(batch, 256),), torch.sum

def deep(batch=2048):
    return nn.Sequential(*(layers() for _ in range(5))), (torch.ones(batch, 256),), torch.sum

def rows():
    return layers(), (torch.ones(3, 256),), torch.sum

def norm(batch=8):
    return layers(nn.BatchNorm1d(256)), (torch.ones(batch, 256),), torch.sum

def even(batch=2):
    if batch % 2:
        raise ValueError("an odd batch")
    return build(batch)

def fixed():
    targets = torch.zeros(3, 256)
    return layers(), (torch.ones(3, 256),), lambda output: nn.functional.mse_loss(output, targets)

def scalar():
    return layers(), {}, torch.sum

def layered(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(6))), (torch.ones(batch, 256),), torch.sum

def tokens(batch=2):
    return nn.Embedding(5, 16), (torch.zeros(batch, 7, dtype=torch.int64),), torch.sum

class Elsewhere(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(256, device="DEVICE")

def elsewhere_in_forward(batch=2):
    return Elsewhere(256, 256), (torch.ones(batch, 256),), torch.sum

def elsewhere_in_build(batch=2):
    return nn.Linear(256, 256).to("DEVICE"), (torch.ones(batch, 256),), torch.sum
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def sized(plan: Plan, *arguments: object, model: str = "model.py") -> dict[str, Any]:
    """By the plain schedule, whose peak tells what fits."""
    result = plan("size", model, "--gpu", "rtx3060", "--solver", "store-all", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_largest_batch_is_the_last_whose_plain_peak_fits(plan: Plan) -> None:
    reported = sized(plan, "--budget", LITTLE)
    trials = {one["batch"]: one for one in reported["batches"]}
    largest = reported["largest_batch"]["batch"]
    assert largest > 8
    assert trials[largest]["fits"]
    assert reported["budget"] == 2_300_000 + reported["constant"]
    assert trials[largest]["baseline_peak"] <= 2_300_000
    above = min(batch for batch in trials if batch > largest)
    assert above <= 1.03 * largest
    assert not trials[above]["fits"]
    assert trials[above]["baseline_peak"] > 2_300_000
    assert trials[largest]["samples_per_second"] == pytest.approx(largest / trials[largest]["time"])


def test_the_smallest_budget_of_the_plain_schedule_is_its_peak(plan: Plan) -> None:
    reported = sized(plan, "--batch", "4, 2,16")
    assert [one["batch"] for one in reported["batches"]] == [2, 4, 16]
    assert reported["budget"] + reported["reserve"] == find_preset("rtx3060").gpu.usable
    assert reported["smallest_budget"]["batch"] == 2
    assert reported["smallest_budget"]["budget"] == reported["batches"][0]["baseline_peak"]
    assert reported["largest_batch"]["batch"] == 16
    assert reported["smallest_budget"]["overhead"] == 0


def test_an_optimizer_takes_memory_and_time(plan: Plan) -> None:
    """AdamW has two states per weight, Lion one, SGD none; without an optimizer the gradients are results."""
    none, sgd, lion, adamw = (
        sized(plan, "--batch", 4, "--optimizer", name)["batches"][0]
        for name in ("none", "sgd", "lion", "adamw")
    )
    weights = 4 * 2 * (256 * 256 + 256)
    assert adamw["baseline_peak"] > sgd["baseline_peak"] + 2 * weights - 1
    temporary = 4 * 256 * 256  # the direction of one matrix: no kernel is fused
    assert lion["baseline_peak"] == pytest.approx(adamw["baseline_peak"] - weights + temporary, abs=8192)
    # Of a batch this small launches take longest.
    assert none["baseline_time"] < sgd["baseline_time"] == adamw["baseline_time"]
    none, sgd, adamw = (
        sized(plan, "--batch", 16_384, "--optimizer", name)["batches"][0] for name in ("none", "sgd", "adamw")
    )
    updates = adamw["baseline_time"] - none["baseline_time"]
    fused = 7 / 20 * weights / 16.6e9
    assert fused < updates < fused + 5e-5  # four updates are launched
    assert none["baseline_time"] < sgd["baseline_time"] < adamw["baseline_time"]


def test_updates_may_wait_for_the_end_of_backward(plan: Plan) -> None:
    early, late = (
        sized(plan, "--batch", 4, "--update", when, model="model.py:deep")["batches"][0]["baseline_peak"]
        for when in ("in-backward", "after")
    )
    assert early < late


def test_rows_are_repeated_where_the_batch_is_no_parameter(plan: Plan) -> None:
    asked, repeated = (sized(plan, "--batch", 5, model=f"model.py:{entry}") for entry in ("build", "rows"))
    assert asked == repeated


def test_the_search_starts_at_a_batch_that_can_be(plan: Plan) -> None:
    reported = sized(plan, "--budget", LITTLE, model="model.py:norm")
    assert reported["smallest_budget"]["batch"] == 2


@pytest.mark.scripts
def test_a_machine_may_replace_that_of_the_gpu(plan: Plan) -> None:
    Path("m.yaml").write_text(f"device: {{capacity: {2_200_000 + KEPT}}}\n")
    small = sized(plan, "--machine", "m.yaml", "--reserve", 0)
    assert small["budget"] == 2_200_000 + KEPT
    assert small["largest_batch"]["batch"] < sized(plan, "--budget", LITTLE)["largest_batch"]["batch"]
    named = sized(plan, "--machine", "rtx4080", "--batch", 1)  # which has more memory than an RTX 3060
    assert named["budget"] + named["reserve"] == find_preset("rtx3060").gpu.usable
    words = ("--gpu", "rtx3060", "--batch", 1, "--solver", "store-all", "--machine", "rtx4080")
    assert "the most that an RTX 3060 can allocate holds instead" in plan("size", "model.py", *words).stderr


def test_the_table(plan: Plan) -> None:
    result = plan("size", "model.py", "--gpu", "rtx3060", "--solver", "store-all", "--batch", "1,2,16384",
                  "--budget", "24MB")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    marked = "  fits; most samples/s: train with this"
    assert sum(line.endswith("  fits") for line in lines) == 1
    assert sum(line.endswith(marked) for line in lines) == 1
    assert lines[0].startswith("yes: batch 2 fits an RTX 3060 12 GB as it is: ")
    assert re.search(r"MiB expected, up to [\d.]+, of 22.9; [\d,]+ samples/s \([\d,]+ to [\d,]+\)$", lines[0])
    assert "tokens/s" not in result.stdout  # no input has tokens
    assert any("16,384" in line and line.endswith("no: below the minimum") for line in lines)
    assert any(line.startswith("smallest budget  batch 1 within") for line in lines)
    assert any(line.startswith("train with       batch 2: ") for line in lines)
    assert "without a plan   up to batch 2, of those tried" in lines
    assert any(line.endswith("  weights") for line in lines)
    assert any(line.endswith("  *") for line in lines)
    assert result.stderr == ""


@pytest.mark.scripts
def test_a_solver_reaches_below_the_plain_peak(plan: Plan) -> None:
    reported = sized(plan, "--solver", "tw-remat", "--batch", "2048", model="model.py:deep")
    assert reported["smallest_budget"]["min_memory"] <= reported["smallest_budget"]["budget"]
    assert reported["smallest_budget"]["budget"] < reported["batches"][0]["baseline_peak"]


def test_nothing_fits(plan: Plan) -> None:
    result = plan(
        "size", "model.py", "--gpu", "rtx3060", "--solver", "store-all", "--budget", "9MB", "--json"
    )
    reported = json.loads(result.stdout)
    assert result.exit_code == 3
    assert reported["largest_batch"] is None
    assert reported["smallest_budget"]["budget"] + KEPT > 9_000_000
    line = result.stderr.strip()
    assert line.startswith("plan: error: batch 1 does not fit within 9,000,000 B")
    assert f"the smallest budget found is {reported['smallest_budget']['budget'] + KEPT:,} B" in line
    assert "\n" not in line


FORGETFUL = """
from dataclasses import replace
from random import Random

from memplan.solvers.problem import InfeasibleError
from memplan.solvers.recomputation.tw_remat import tw_remat

random, seen = Random(SEED), set()

def solve(problem, options):
    batch = int(problem.graph.tensors.bytes.sum())
    if batch not in seen or random.random() < 1 / 4:
        seen.add(batch)
        raise InfeasibleError("theirs", problem.budget, None, 0)
    return tw_remat.solve(problem, replace(options, settings=None))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("entry", ["build", "deep", "norm"])
@pytest.mark.parametrize(("budget", "seed"), [("9MB", 0), ("29MB", 1), ("33MB", 2)])
def test_what_is_refused_agrees_with_the_smallest_budget(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, budget: str, seed: int
) -> None:
    """The solver runs out of time for each batch's first question, and some more: what is found for others
    holds for these too."""
    plug_ins.install(tmp_path, monkeypatch, FORGETFUL.replace("SEED", str(seed)))
    words = ("--solver", "theirs", "--budget", budget, "--batch", "1024,2048,4096", "--json")
    result = plan("size", f"model.py:{entry}", "--gpu", "rtx3060", *words)
    reported = json.loads(result.stdout)
    least, batches = reported["smallest_budget"], reported["batches"]
    first = batches[0]
    assert result.exit_code == (0 if any(one["fits"] for one in batches) else 3)
    assert first["batch"] == least["batch"] == 1024
    assert least["device_budget"] == least["budget"] + reported["constant"] <= first["baseline_peak"] + KEPT
    assert first["fits"] == (least["device_budget"] <= reported["budget"])
    if first["fits"]:
        assert least["device_budget"] <= first["peak"] + KEPT
        kept = KEPT if first["planned"] else 2 * KEPT  # and that of backward's thread
        assert first["needs"]["expected"] >= first["peak"] + kept
        assert reported["breakdown"] is not None
    if result.exit_code:
        assert f"the smallest budget found is {least['device_budget']:,} B" in result.stderr
    fitting = [one["fits"] for one in batches]
    assert fitting == sorted(fitting, reverse=True)  # a schedule of a batch is one of every smaller batch


@pytest.mark.scripts
def test_pinned_memory_that_forbids_a_batch_is_named(plan: Plan) -> None:
    lines = [f"device: {{capacity: {14_000_000 + KEPT}}}", "host: {capacity: 1GB, pinned: 10KB}"]
    Path("m.yaml").write_text("\n".join([*lines, "links: {d2h: 100e9, h2d: 100e9}"]))
    words = ("--machine", "m.yaml", "--solver", "pofo", "--batch", "2048", "--optimizer", "none", "--json",
             "--reserve", "0")  # fmt: skip
    result = plan("size", "model.py:deep", "--gpu", "rtx3060", *words)
    assert result.exit_code == 3
    one = json.loads(result.stdout)["pinning"]
    assert (one["batch"], one["fits"]) == (2048, True)
    assert one["least_pinned"] > 10_000
    line = "batch 2,048 would fit but for host.pinned, 10,000 B = 9.77 KiB: its schedule pins"
    assert f"{line} {one['least_pinned']:,} B" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


INTERRUPTED_AT_THE_SECOND = """
from dataclasses import replace

from memplan.solvers.recomputation.tw_remat import tw_remat

calls = []

def solve(problem, options):
    calls.append(1)
    if len(calls) == 2:
        raise KeyboardInterrupt
    return tw_remat.solve(problem, replace(options, settings=None))
"""


def test_ctrl_c_tells_what_was_found(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_ins.install(tmp_path, monkeypatch, INTERRUPTED_AT_THE_SECOND)
    words = ("--solver", "theirs", "--budget", f"{14_000_000 + KEPT}", "--batch", "8,1024,2048", "--json")
    result = plan("size", "model.py:deep", "--gpu", "rtx3060", *words)
    reported = json.loads(result.stdout)
    assert result.exit_code == 130
    assert reported["interrupted"]
    assert [one["batch"] for one in reported["batches"]] == [8, 1024]
    assert reported["largest_batch"]["batch"] == 8
    assert reported["smallest_budget"] is None


UNABLE_AT_THE_SECOND = """
from dataclasses import replace

from memplan.solvers.problem import NotFoundError
from memplan.solvers.recomputation.tw_remat import tw_remat

calls = []

def solve(problem, options):
    calls.append(1)
    if len(calls) == 2:
        raise ERROR
    return tw_remat.solve(problem, replace(options, settings=None))
"""


@pytest.mark.scripts
@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        ("NotFoundError('theirs', problem.budget, 0)", 0, "theirs had no answer in 3.00 s"),
        ("RuntimeError('a bug\\nof theirs')", 1, "theirs failed: RuntimeError: a bug of theirs"),
    ],
)
def test_a_question_without_an_answer_costs_its_own_row(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, code: int, reason: str
) -> None:
    """The second question is the largest batch's: no schedule of another fits it."""
    plug_ins.install(tmp_path, monkeypatch, UNABLE_AT_THE_SECOND.replace("ERROR", error))
    words = ("--solver", "theirs", "--budget", f"{28_000_000 + KEPT}", "--batch", "8,1024,2048")
    result = plan("size", "model.py:deep", "--gpu", "rtx3060", *words, "--time-limit", "3", "--json")
    first, second, third = json.loads(result.stdout)["batches"]
    assert result.exit_code == code
    assert (result.stderr.strip() == f"plan: an internal error: {reason}") == (code == 1)
    assert [one["fits"] for one in (first, second, third)] == [True, True, False]
    assert first["unanswered"] is second["unanswered"] is None
    assert third["unanswered"] == {"reason": reason, "fault": code == 1}

    sys.modules.pop("solver_theirs")
    table = plan("size", "model.py:deep", "--gpu", "rtx3060,rtx3090", *words, "--time-limit", "3").stdout
    assert all(name in table for name in ("rtx3060", "rtx3090"))


def test_ctrl_c_at_the_first_batch_is_no_answer(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def build(batch=1):\n    raise KeyboardInterrupt\n"
    (tmp_path / "stopped.py").write_text(text)
    result = plan("size", "stopped.py", "--gpu", "rtx3060,rtx3090")
    assert result.exit_code == 130
    assert "rtx3060: interrupted" in result.stdout
    assert "rtx3090" not in result.stdout


def test_several_gpus_have_a_first_answer_then_a_row_each_as_it_comes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second search is interrupted: what was found before is printed and written, the third is named."""
    plug_ins.install(tmp_path, monkeypatch, INTERRUPTED_AT_THE_SECOND)
    searches, run = list[str](), SizeSearch.run

    def counted(search: SizeSearch, batches: list[int] | None) -> SizeResult:
        searches.append(search.loops.preset.name)
        return run(replace(search, known=Known()), batches)

    monkeypatch.setattr(SizeSearch, "run", counted)
    words = "--solver", "theirs", "--budget", f"{14_000_000 + KEPT}", "--batch", "1024", "-o", "page.html"
    result = plan("size", "model.py:deep", "--gpu", "a100,rtx3060,v100", *words)
    assert result.exit_code == 130
    assert searches == ["a100", "rtx3060"]  # those that people ask for most
    first, _empty, plans = result.stdout.partition("with plans: ")
    assert [line.split()[-1] for line in first.splitlines() if "MiB" in line] == ["a100", "rtx3060", "v100"]
    assert [line.endswith("interrupted") for line in plans.splitlines()[2:]] == [False, True]
    assert "Interrupted: 2 of 3 GPUs were tried. Not tried: v100." in Path("page.html").read_text()
    assert "interrupted: this is what was found so far" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["model.py"], "Missing option '--gpu'"),
        (["model.py", "--gpu", "rtx306"], "no GPU or machine named 'rtx306' is known; close names: rtx3060"),
        (["no.py", "--gpu", "a100"], "no.py: no such file"),
        (["model", "--gpu", "a100"], "model: no such file: is it model.py?"),
        (["gpt2", "--gpu", "a100"], "hf download gpt2 config.json, then this command"),
        (["meta-llama/Llama-2-7b", "--gpu", "a100"], "Nothing is downloaded here"),
        (["model.py:nope", "--gpu", "a100"], "no function nope()"),
        (["model.py", "--gpu", "a100", "--batch", "0"], "'0' is not a list of batches"),
        (
            ["model.py", "--gpu", "a100", "--batch", f"{10**30}"],
            "is not a list of batches: give integers like 1,2,4, from 1",
        ),
        (["model.py", "--gpu", "a100", "--batch", "-1"], "'-1' is not a list of batches"),
        (["model.py", "--gpu", "a100", "--batch", "1,,2"], "'1,,2' is not a list of batches"),
        (["model.py", "--gpu", "a100", "--batch", "two"], "'two' is not a list of batches"),
        (["model.py", "--gpu", "a100", "--batch", ""], "'' is not a list of batches"),
        (["model.py", "--gpu", "a100", "--budget", "60%"], "a percentage is of the baseline's peak"),
        (["model.py", "--gpu", "a100", "--solver", "magic"], "magic"),
        (["model.py", "--gpu", "a100", "--set", "speed=1"], "speed"),
        (["model.py", "--gpu", "a100", "--time-limit", "0"], "must be above 0 seconds and finite, not 0"),
        (["model.py", "--gpu", "a100", "--optimizer", "lamb"], "'lamb' is not one of"),
        (["model.py", "--gpu", "a100", "--machine", "no.yaml"], "no.yaml: no such file"),
        (["model.py", "--gpu", "a100", "--machine", "typo.yaml"], "unknown field 'linsk': is it 'links'?"),
        (["model.py", "--gpu", "a100", "--machine", "any.yaml"], "has no device capacity: give a --budget"),
        (["model.py", "--gpu", "a100,rtx306"], "no GPU or machine named 'rtx306' is known"),
        (["model.py", "--gpu", "all", "--machine", "a100"], "it goes with one --gpu"),
        (["model.py", "--gpu", "a100", "--seq-len", "8"], "--seq-len is for a Hugging Face configuration"),
        (["model.py", "--gpu", "a100", "--dtype", "float16"], "--dtype is for a Hugging Face configuration"),
        (["no.json", "--gpu", "a100"], "no.json: no such file"),
        (["model.py", "--gpu", "a100", "--reserve", "900GiB"], "leaves nothing of"),
        (["model.py", "--gpu", "a100", "--reserve", "1"], "reserve 1: that is 1 byte, which no device"),
        (["model.py", "--gpu", "a100", "--budget", "12"], "needs: write a unit, like 12GB, 12B for bytes"),
        (["model.py", "--gpu", "a100", "--time-limit", "2weeks"], "is not a time, like 30 (seconds)"),
        (["model.py", "--gpu", "a100", "--machine", "slow.yaml"], "write 12GB/s, or 12B/s"),
        (["model.py", "--gpu", "a100", "-o", "page.pdf"], "the suffix must be .html"),
        (["model.py:even", "--gpu", "a100", "--batch", "2,3"], "batch 3: model.py:22: even(batch=3) fails"),
        (["model.py:fixed", "--gpu", "a100", "--batch", "4"], "batch 4: "),
        (["model.py:scalar", "--gpu", "a100"], "have no batch to change: give the function a parameter"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_wrong_call_is_one_line(plan: Plan, arguments: list[str], line: str) -> None:
    Path("slow.yaml").write_text("device: {capacity: 12GB}\nlinks: {d2h: 12, h2d: 12}\n")
    Path("typo.yaml").write_text("linsk: {d2h: 1e9}\n")
    Path("any.yaml").write_text("links: {d2h: 1e9, h2d: 1e9}\n")
    result = plan("size", *arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_budget_above_the_capacity(plan: Plan) -> None:
    result = plan("size", "model.py", "--gpu", "rtx3060", "--solver", "store-all", "--batch", "1", "--json",
                  "--budget", "1TB")  # fmt: skip
    reported = json.loads(result.stdout)
    assert reported["budget"] == find_preset("rtx3060").gpu.usable
    assert "above the device's capacity" in result.stderr


CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.mark.scripts
def test_a_configuration_instead_of_a_model_file(plan: Plan) -> None:
    Path("config.json").write_text(json.dumps(CONFIG))
    reported = sized(plan, "--batch", "2,4", "--seq-len", 32, "--dtype", "bfloat16", model="config.json")
    assert reported["model"] == "GPT2LMHeadModel, weights in bfloat16, 32 tokens a sample"
    assert [one["fits"] for one in reported["batches"]] == [True, True]
    folder = sized(plan, "--batch", "2,4", "--seq-len", 32, "--dtype", "bfloat16", model=".")
    assert folder["batches"] == reported["batches"]
    longer = sized(plan, "--batch", "2,4", model="config.json")
    assert longer["model"] == "GPT2LMHeadModel, weights in float32, 64 tokens a sample"
    assert longer["batches"][0]["baseline_peak"] > reported["batches"][0]["baseline_peak"]


def test_the_ends_and_the_parts_of_a_batch(plan: Plan) -> None:
    reported = sized(plan, "--batch", 8)
    (one,) = reported["batches"]
    whole = reported["breakdown"]["all"]
    low, expected, high = (one["needs"][name] for name in ("low", "expected", "high"))
    assert low > one["baseline_peak"]  # all gradients are there when the optimizer steps
    assert low < expected - 2 * KEPT <= low + whole["workspace"]
    assert high >= expected
    segments = (high - 2 * KEPT) / (1 + LOOSE)
    assert segments == pytest.approx(2**20 * round(segments / 2**20), abs=2)  # whole ones of the allocator
    assert one["times"]["low"] < one["time"] < one["times"]["high"]
    assert one["planned"] is False
    assert one["tight"] is False
    modules = reported["breakdown"]["modules"]
    kinds = ("weights", "gradients", "optimizer_states", "activations", "workspace")
    assert sum(whole[kind] for kind in kinds) == expected - 2 * KEPT
    for kind in (*kinds, "time"):
        assert sum(part[kind] for part in modules) == pytest.approx(whole[kind])
    assert whole["weights"] == whole["optimizer_states"] / 2


def steps_of(reported: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in reported["next_steps"]["rows"]}


@pytest.mark.scripts
def test_what_people_do_next_is_a_row_each(plan: Plan) -> None:
    """At a batch at which activations are most of it: all plans take what checkpoints do."""
    words = ("--batch", 8192, "--solver", "auto")
    reported = sized(plan, *words, model="model.py:layered")
    (one,), rows = reported["batches"], steps_of(reported)
    within = reported["next_steps"]["within"]
    assert list(rows) == [
        "as it is",
        "gradient checkpointing",
        "8-bit optimizer",
        "a plan with recomputation",
        "a plan with offloading",
        "updates on the host",
        *alternatives.BY_HAND,
    ]
    whole = rows["as it is"]
    assert whole["needs"] == one["needs"]
    assert whole["time"] == one["time"]
    assert whole["samples_per_second"] == one["samples_per_second"] == pytest.approx(8192 / one["time"])
    checkpoints, recomputed, offloaded = (
        rows[name]
        for name in ("gradient checkpointing", "a plan with recomputation", "a plan with offloading")
    )
    assert within < 0.7 * whole["needs"]["expected"]
    for row in (recomputed, offloaded):
        assert row["fits"]
        assert row["needs"]["expected"] <= within <= checkpoints["needs"]["expected"]
    assert whole["time"] < recomputed["time"] <= checkpoints["time"]
    eight_bit = rows["8-bit optimizer"]
    assert "--optimizer adamw8bit plans with it" in eight_bit["note"]
    assert eight_bit["needs"]["expected"] < whole["needs"]["expected"]
    assert eight_bit["time"] < whole["time"]
    for name in alternatives.BY_HAND:
        row = rows[name]
        assert row["note"]
        assert not row["needs"] or row["needs"]["expected"] <= within


def test_a_solver_that_finds_nothing_leaves_the_checkpoints_of_layers(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a plan in as many bytes as plans get there."""
    monkeypatch.setattr(alternatives, "RECOMPUTATION", "no-such-solver")
    rows = steps_of(sized(plan, "--batch", 8192, model="model.py:layered"))
    found = rows["a plan with recomputation"]
    assert found["note"].startswith("around each layer: ")
    assert found["fits"]
    assert found["needs"]["expected"] <= rows["gradient checkpointing"]["needs"]["expected"]


def test_states_of_eight_bits_save_three_quarters_of_large_ones(plan: Plan) -> None:
    """At the step: weights, gradients, states; the copies of kernels for lists go too."""
    for optimizer, states in (("adamw", 2), ("lion", 1)):
        rows = steps_of(sized(plan, "--batch", 1, "--optimizer", optimizer))
        saved = rows["as it is"]["needs"]["low"] - rows["8-bit optimizer"]["needs"]["low"]
        assert saved == states * 2 * (4 * 65_536 - 65_536 * 65 // 64), optimizer
    assert "8-bit optimizer" not in steps_of(sized(plan, "--batch", 1, "--optimizer", "sgd"))


def test_a_row_that_can_not_be_says_why(plan: Plan) -> None:
    Path("alone.yaml").write_text("device: {capacity: 1GB}\n")
    reported = sized(plan, "--batch", 8192, "--machine", "alone.yaml", model="model.py:layered")
    rows = steps_of(reported)
    assert rows["a plan with offloading"]["note"] == "the machine has no links to the host"
    assert rows["a plan with recomputation"]["note"] == "around each layer: no plan found in a moment"
    assert rows["a plan with recomputation"]["fits"]
    assert "updates on the host" not in rows


def test_what_does_not_fit_says_so_and_what_would_fit(plan: Plan) -> None:
    result = plan("size", "model.py", "--gpu", "rtx3060", "--budget", "10.7MB", "--batch", 1)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith("yes: batch 1 fits an RTX 3060 12 GB with a plan")
    assert any(line.endswith("  as it is: does not fit") for line in lines)
    words = ("--budget", "9MB", "--solver", "store-all", "--json")
    reported = json.loads(plan("size", "model.py", "--gpu", "rtx3060", *words).stdout)
    assert not any(row["fits"] for row in reported["next_steps"]["rows"])
    assert reported["next_steps"]["batch"] == 1


def test_tokens_per_second_of_a_model_with_tokens(plan: Plan) -> None:
    Path("config.json").write_text(json.dumps(CONFIG))
    reported = sized(plan, "--batch", 2, "--seq-len", 32, model="config.json")
    assert reported["tokens_per_sample"] == 32
    assert reported["answer"].endswith(" tokens/s")
    own = sized(plan, "--batch", 2, model="model.py:tokens")
    assert own["tokens_per_sample"] == 7
    none = sized(plan, "--batch", 2)
    assert none["tokens_per_sample"] is None
    assert "tokens" not in none["answer"]


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("cuda:1", "the model asks for cuda:1: an estimate is for one GPU, which is cuda:0"),
        ("mps", "the model asks for mps: an estimate is for NVIDIA's GPUs, which are cuda"),
        ("npu:0", "the model asks for npu:0: an estimate is for NVIDIA's GPUs, which are cuda"),
    ],
)
@pytest.mark.parametrize("when", ["build", "forward"])
def test_a_device_that_is_not_there_is_named(plan: Plan, device: str, line: str, when: str) -> None:
    text = MODEL.replace("DEVICE", device)
    Path("model.py").write_text(text)
    result = plan("size", f"model.py:elsewhere_in_{when}", "--gpu", "t4", "--batch", 2)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_reserve_is_left_free(plan: Plan) -> None:
    capacity = find_preset("rtx3060").gpu.usable
    assert sized(plan, "--batch", 1)["reserve"] == int(0.01 * capacity)
    reported = sized(plan, "--batch", 1, "--reserve", "2GiB")
    assert reported["reserve"] == 2**31
    assert reported["budget"] == capacity - 2**31
    assert sized(plan, "--batch", 1, "--budget", "1GiB")["reserve"] == 0


def test_the_batches_in_between_are_not_traced(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    real, traced = Estimates._trace, list[int]()

    def noted(self: Estimates, gpu: Any, batch: int) -> Any:
        traced.append(batch)
        return real(self, gpu, batch)

    monkeypatch.setattr(Estimates, "_trace", noted)
    reported = sized(plan, "--budget", "30MB")
    marked = reported["fastest_batch"]["batch"]
    assert len(reported["batches"]) > 10
    assert len(traced) <= 5
    assert set(traced) == {1, 2, 32, *([8] if 8 in traced else []), max(traced)}
    assert marked <= max(traced) <= 2 * marked


def test_a_batch_that_fits_is_no_question_to_the_solver(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_ins.install(tmp_path, monkeypatch, "def solve(problem, options):\n    raise RuntimeError('asked')\n")
    words = ("size", "model.py", "--gpu", "rtx3060,a100", "--batch", "1,8", "--solver", "theirs", "--json")
    result = plan(*words)
    assert result.exit_code == 0, result.stderr


def test_a_batch_whose_high_end_is_above_the_limit_is_tight(plan: Plan) -> None:
    """Its tensors fit; the allocator's segments, of 20 MiB, don't."""
    reported = sized(plan, "--batch", 2048, "--budget", f"{18 * 2**20 + 2 * KEPT}")
    (one,) = reported["batches"]
    assert one["fits"]
    assert one["tight"]
    assert one["needs"]["expected"] <= reported["budget"] < one["needs"]["high"]


@pytest.mark.scripts
def test_all_gpus_in_one_table(plan: Plan) -> None:
    words = ("size", "model.py:deep", "--solver", "store-all", "--batch", "64,1024", "--gpu", "all")
    result = plan(*words, "--json", "-o", "all.html")
    assert result.exit_code == 0, result.stderr
    reported = json.loads(result.stdout)
    names = [one["machine"] for one in reported["gpus"]]
    assert sorted(names) == sorted(presets())
    limits = [one["budget"] for one in reported["gpus"]]
    assert limits == sorted(limits)
    assert all(one["fastest_batch"]["batch"] == 1024 for one in reported["gpus"])
    assert reported["page"] == "all.html"
    page = Path("all.html").read_text()
    lines = plan(*words).stdout.splitlines()
    for name in presets():
        assert any(line.endswith(f"  {name}") for line in lines)
        assert f">{name}</td>" in page


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ((), "host       64,000,000,000 B = 59.60 GiB, assumed: --host says what yours has"),
        (("--host", "32GB"), "host       32,000,000,000 B = 29.80 GiB"),
    ],
)
def test_the_host_is_named_where_a_plan_needs_it(plan: Plan, words: tuple[str, ...], host: str) -> None:
    small = (
        "--budget",
        f"{9_000_000 + KEPT}",
        "--batch",
        "64",
        "--time-limit",
        "2",
        "--solver",
        "zero-offload",
    )
    lines = plan("size", "model.py:deep", "--gpu", "rtx4090", *small, *words).stdout.splitlines()
    assert re.search(r"^yes: .* fits .* with a plan and [\d.]+ MiB of host memory: ", lines[0])
    assert host in lines


def test_an_answer_whose_high_end_is_far_above_the_limit_is_perhaps(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "size", "model.py", "--gpu", "rtx3060", "--batch", "8"
    assert plan(*words).stdout.startswith("yes: ")
    monkeypatch.setattr("memplan.sizing.answer.DOUBTFUL", 1e-3)
    assert plan(*words).stdout.startswith("perhaps: ")


@pytest.mark.scripts
def test_no_plan_is_slower_than_checkpoints_of_layers(plan: Plan) -> None:
    """However little time the solver has."""
    words = "--budget", f"{30_000_000 + KEPT}", "--batch", "1024", "--time-limit", "0.05"
    result = plan("size", "model.py:layered", "--gpu", "rtx3060", *words, "--json")
    reported = json.loads(result.stdout)
    rows = {row["name"]: row for row in reported["next_steps"]["rows"]}
    checkpoints = rows["gradient checkpointing"]
    assert not reported["batches"][0]["planned"] or checkpoints["fits"]
    assert reported["batches"][0]["time"] <= checkpoints["time"] * (1 + 1e-9)


def test_the_page_has_what_the_terminal_has(plan: Plan) -> None:
    words = ("size", "model.py", "--gpu", "rtx3060", "--solver", "store-all", "--batch", "1,4096")
    result = plan(*words, "-o", "size.html")
    assert "written: size.html" in result.stderr
    page = Path("size.html").read_text()
    for words_there in ("It fits. Train with batch 4,096", "optimizer states", "baseline peak", "in reserve"):
        assert words_there in page or words_there in result.stdout
    assert "<svg" in page


def test_a_second_command_traces_nothing(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sized(plan, "--batch", 2)

    def fails(*_arguments: Any, **_named: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("memplan.profiling.profile.estimates.traced", fails)
    assert sized(plan, "--batch", 2) == first
    result = plan("size", "model.py", "--gpu", "rtx3060", "--batch", 2, "--no-cache")
    assert isinstance(result.exception, AssertionError) or "AssertionError" in result.stderr


def test_a_refusal_ends_with_a_command_that_fits(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["size", "model.py", "--gpu", "rtx3060", "--batch", "8", "--solver", "store-all"]
    few = [*words, "--budget", "9MB"]
    monkeypatch.setattr(sys, "argv", ["plan", *few])
    refused = plan(*few)
    assert refused.exit_code == 3
    tried = refused.stderr.partition("; try: plan ")[2].split()
    assert tried[: len(words)] == [*words[:4], "--batch", "8", "--solver", "store-all"]
    assert plan(*tried).exit_code == 0


def test_a_card_that_is_too_small_leads_to_all_cards(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["size", "model.py", "--gpu", "rtx3060", "--batch", str(2**20), "--solver", "store-all"]
    monkeypatch.setattr(sys, "argv", ["plan", *few, "--seq-len=3"])
    found = SizeResult(find_preset("rtx3060"), Room(1, 0, 0), Machine())
    assert command.command_to_try([found], SizeRequest("model.py", "rtx3060")) == (
        f"plan size model.py --gpu all --batch {2**20} --solver store-all --seq-len=3"
    )
    assert command.command_to_try([found, found], SizeRequest("model.py", "rtx3060,t4")) is None


def test_a_configuration_of_diffusers_names_the_way(plan: Plan) -> None:
    Path("unet").mkdir()
    Path("unet/config.json").write_text('{"_class_name": "UNet2DConditionModel"}')
    result = plan("size", "unet", "--gpu", "rtx3060")
    assert result.exit_code == 2
    assert (
        "it is a configuration of diffusers: write a model file (docs/how-to/diffusion-lora.md)"
        in result.stderr
    )
