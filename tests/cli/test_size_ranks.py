"""`plan size --ranks`: sharded training on equal GPUs, by FSDP2's policies and by a plan."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.graphs.files.files import load_graph
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.sizing.search import SizeSearch
from memplan.sizing.trial import minimum_of
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import Problem

Plan = Callable[..., Result]

MODEL = """
import torch
from torch import nn

def build(batch=8):
    layer = lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.GELU())
    return nn.Sequential(*(layer() for _ in range(4))), (torch.ones(batch, 256),), torch.sum
"""
LOW = """
from model import build as build_in_float32

def build(batch=8):
    module, (x,), loss_fn = build_in_float32(batch)
    return module.bfloat16(), (x.bfloat16(),), loss_fn
"""
WEIGHTS = 4 * 4 * (2 * 256 * 1024 + 1024 + 256)
STATES = 2 * WEIGHTS
RANKS = ("--ranks", 4, "--link", "pcie4")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def sized(plan: Plan, *arguments: object, gpu: str = "rtx3060") -> dict[str, Any]:
    result = plan("size", "model.py", "--gpu", gpu, "--json", "--time-limit", 1, *RANKS, *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def reported(plan: Plan) -> dict[str, Any]:
    return sized(plan, "--batch", "64,512", "-o", "size.html")


def policy(row: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in row["policies"] if one["policy"] == name)


def test_policies_are_those_of_a_graph_that_is_sharded_by_hand(plan: Plan) -> None:
    """The other way to the same figures: profile, shard, and FSDP2's policies."""
    (row,) = sized(plan, "--batch", 8)["batches"]
    estimate = ("profile", "model.py", "--estimate", "--gpu", "rtx3060", "--optimizer", "adamw")
    assert plan(*estimate, "-o", "graph.json").exit_code == 0
    assert plan("shard", "graph.json", *RANKS, "-o", "sharded.json").exit_code == 0
    graph = load_graph(Path("sharded.json"))
    assert graph.machine is not None
    machine = Machine(links=Links(peers=graph.machine.links.peers))
    found = {str(name): figures for name, _s, figures in policy_schedules(Problem(graph, 2**50, machine))}
    assert len(found) == len(row["policies"]) > 1
    for name, figures in found.items():
        assert policy(row, name)["time"] == pytest.approx(figures.time, rel=0.02)


def test_mixed_precision_has_the_figures_of_a_graph_that_is_sharded_by_hand(plan: Plan) -> None:
    policy_of = ("--param-dtype", "bf16", "--reduce-dtype", "float32")
    found = sized(plan, "--batch", 8, "--update", "after", *policy_of)
    # A float32 master and two float32 averages of each weight, over four ranks.
    assert (WEIGHTS + STATES) / 4 <= found["shares"] <= (WEIGHTS + STATES) / 4 + 500
    assert (found["param_dtype"], found["reduce_dtype"]) == ("bfloat16", "float32")
    (row,) = found["batches"]
    Path("low.py").write_text(LOW)
    estimate = ("profile", "low.py", "--estimate", "--gpu", "rtx3060", "--optimizer", "adamw")
    assert plan(*estimate, "--update", "after", "--master-weights", "-o", "graph.json").exit_code == 0
    made = plan("shard", "graph.json", *RANKS, *policy_of, "-o", "sharded.json")
    assert made.exit_code == 0, made.stderr
    graph = load_graph(Path("sharded.json"))
    assert graph.machine is not None
    assert rank_bytes(graph) == found["shares"]
    machine = Machine(links=Links(peers=graph.machine.links.peers))
    policies = [*policy_schedules(Problem(graph, 2**50, machine))]
    assert len(policies) == len(row["policies"]) > 1
    for name, _schedule, figures in policies:
        assert policy(row, str(name))["time"] == pytest.approx(figures.time, rel=0.02)


def test_a_model_in_16_bits_has_nothing_to_gather_in_another_dtype(plan: Plan) -> None:
    Path("low.py").write_text(LOW)
    result = plan("size", "low.py", "--gpu", "rtx3060", "--batch", 8, *RANKS, "--param-dtype", "bf16")
    assert result.exit_code == 2
    assert "--param-dtype: no weight is float32, so none is gathered in another dtype" in result.stderr


@pytest.mark.scripts
def test_weights_and_states_are_spread(reported: dict[str, Any]) -> None:
    # Small biases are spread as well: each share is rounded up.
    assert (WEIGHTS + STATES) / 4 <= reported["shares"] <= (WEIGHTS + STATES) / 4 + 500
    for row in reported["batches"]:
        assert row["samples_per_second"] == pytest.approx(4 * row["batch"] / row["time"])
        kept, again = policy(row, "keep"), policy(row, "reshard")
        assert again["least_budget"] < kept["least_budget"]
        assert kept["time"] <= again["time"]
        assert row["time"] <= min(one["time"] for one in row["policies"]) * (1 + 1e-9)
        assert row["min_memory"] <= min(one["least_budget"] for one in row["policies"])


@pytest.mark.scripts
def test_less_memory_takes_no_less_time_and_a_plan_none_more(reported: dict[str, Any]) -> None:
    curve = reported["curve"]
    assert len(curve) == 5
    budgets = [point["budget"] for point in curve]
    assert budgets == sorted(budgets, reverse=True)
    for point in curve:
        if point["policy_seconds"] is not None:
            assert point["seconds"] <= point["policy_seconds"] * (1 + 1e-9)
    by_policy = [point["policy_seconds"] for point in curve if point["policy_seconds"] is not None]
    assert by_policy == sorted(by_policy)
    planned = [point["seconds"] for point in curve if point["seconds"] is not None]
    assert planned == sorted(planned)


@pytest.mark.scripts
def test_the_page_has_the_curve(reported: dict[str, Any]) -> None:
    page = Path("size.html").read_text()
    assert reported["page"] == "size.html"
    assert 'class="tradeoff"' in page
    assert "FSDP2: reshard" in page
    assert "4 ranks" in page


@pytest.mark.scripts
def test_more_ranks_fit_what_one_gpu_does_not(plan: Plan) -> None:
    # Gradients, and copies of the step, come in addition.
    budget = WEIGHTS + STATES
    alone = plan("size", "model.py", "--gpu", "rtx3060", "--solver", "store-all", "--budget", budget)
    assert alone.exit_code == 3
    found = sized(plan, "--budget", budget, "--batch", 8)
    assert found["fastest_batch"]["batch"] == 8


def test_lines_say_what_is_needed_of_each(plan: Plan) -> None:
    result = plan("size", "model.py", "--gpu", "rtx3060", "--time-limit", 1, "--batch", 64, *RANKS)
    assert result.exit_code == 0, result.stderr
    first, *others = result.stdout.splitlines()
    # Kept weights are no faster: launching is what takes the time.
    assert first.startswith("yes: batch 64 on each of 4 RTX 3060 12 GB fits by FSDP2 (reshard): ")
    assert " each; " in first
    assert " samples/s in all (" in first
    assert any("between ranks  4 ranks, 20 GB/s, 30.0 µs a collective" in line for line in others)
    assert sum("FSDP2: " in line for line in others) == 6


def test_a_price_is_of_one_gpu(plan: Plan) -> None:
    found = sized(plan, "--batch", 64, "--price", "2/h")
    rate = found["fastest_batch"]["samples_per_second"]
    assert found["samples_per_price"] == pytest.approx(rate * 3600 / (4 * 2))


@pytest.mark.scripts
def test_replicas_train_more_samples_and_wait_for_their_network(plan: Plan) -> None:
    alone = sized(plan, "--batch", 64)
    replicas = ("--replicas", 2, "--replica-link", "1GB/s,2ms")
    found = sized(plan, "--batch", 64, "--price", "2/h", *replicas)
    assert found["replicas"] == {"count": 2, "rate": 1e9, "latency": 2e-3}
    assert "on each of 8 RTX 3060" in found["answer"]
    (row,) = found["batches"]
    assert row["time"] > alone["batches"][0]["time"]
    assert row["min_memory"] == alone["batches"][0]["min_memory"]
    assert row["samples_per_second"] == pytest.approx(8 * 64 / row["time"])
    assert found["samples_per_price"] == pytest.approx(row["samples_per_second"] * 3600 / (8 * 2))
    words = ("size", "model.py", "--gpu", "rtx3060", "--batch", 64, "--solver", "fsdp", *RANKS, *replicas)
    assert "between replicas  2 replicas, 1 GB/s, 2.00 ms an all-reduce" in plan(*words).stdout


@pytest.mark.scripts
def test_states_on_the_host_of_a_node_fit_less_memory(plan: Plan) -> None:
    """The host has room for the states of all ranks of a node; if fewer share it, each has more of it."""
    budget = 15_000_000  # of which 8 MiB are for cuBLAS
    words = ("--batch", 8, "--budget", budget)
    refused = plan("size", "model.py", "--gpu", "rtx3060", "--time-limit", 1, *RANKS, *words)
    assert refused.exit_code == 3
    found = sized(plan, *words, "--host", f"{2 * STATES}B")
    (row,) = found["batches"]
    assert found["host"] == 2 * STATES // 4
    assert STATES // 8 < row["host_peak"] <= found["host"]
    assert max(point["host_peak"] or 0 for point in found["curve"]) > STATES // 8
    two = sized(plan, *words, "--host", f"{2 * STATES}B", "--node-ranks", 2)
    assert two["host"] == 2 * STATES // 2
    little = plan("size", "model.py", "--gpu", "rtx3060", "--time-limit", 1, *RANKS, *words, "--host", "1MB")
    assert little.exit_code == 3


@pytest.mark.scripts
def test_a_machine_file_has_the_network(plan: Plan) -> None:
    """It is taken for its own number of ranks; without --ranks one GPU is sized."""
    assert plan("machine", "rtx3060", "--ranks", 4, "--link", "pcie4", "-o", "four.yaml").exit_code == 0
    words = (
        "size",
        "model.py",
        "--gpu",
        "rtx3060",
        "--time-limit",
        1,
        "--batch",
        8,
        "--machine",
        "four.yaml",
    )
    found = json.loads(plan(*words, "--ranks", 4, "--json").stdout)
    assert found["ranks"] == 4
    assert found["link"]["rate"] == 20e9
    assert "ranks" not in json.loads(plan(*words, "--json").stdout)
    refused = plan(*words, "--ranks", 2)
    assert refused.exit_code == 2
    assert "a network of 4 ranks: give --ranks 4 without --replicas" in refused.stderr.replace("\n", " ")


def test_what_does_not_fit_says_what_is_needed(plan: Plan) -> None:
    few = plan(
        "size", "model.py", "--gpu", "rtx3060", "--time-limit", 1, "--batch", 8, "--budget", "10MB", *RANKS
    )
    assert few.exit_code == 3
    assert "batch 8 on each rank does not fit within 10,000,000 B" in few.stderr
    assert "the minimum memory with 4 ranks is" in few.stderr
    assert "FSDP2's (" in few.stderr


def test_an_interrupted_search_has_what_was_found(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SizeSearch, "_explain_ranks", interrupted)
    result = plan("size", "model.py", "--gpu", "rtx3060", "--time-limit", 1, "--batch", 8, *RANKS)
    assert result.exit_code == 130
    assert result.stdout.startswith("yes: batch 8 on each of 4")
    assert "interrupted: this is what was found so far" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--ranks", 4], "--ranks 4: give their network too: --link nvlink|pcie5|pcie4|ib400|eth100"),
        (["--link", "nvlink"], "--link is of several GPUs: give --ranks too"),
        (["--ranks", 4, "--link", "nvlnk"], "no network is called 'nvlnk': did you mean 'nvlink'?"),
        (["--ranks", 1, "--link", "nvlink"], "1 is not in the range 2<=x<=1048576"),
        ([*RANKS, "--accumulate", 2], "omit --accumulate"),
        ([*RANKS, "--global-batch", 8], "omit --global-batch"),
        ([*RANKS, "--gpu", "t4,a100"], "--ranks are of equal GPUs: it goes with one --gpu"),
        (["--replicas", 2], "--replicas is of several GPUs: give --ranks too"),
        ([*RANKS, "--replica-link", "eth100"], "--replica-link goes with --replicas: --replicas 2"),
        ([*RANKS, "--reduce-dtype", "float32"], "--reduce-dtype goes with --param-dtype bfloat16"),
        (["--param-dtype", "bf16"], "--param-dtype is of several GPUs: give --ranks too"),
        (
            [*RANKS, "--param-dtype", "bf16", "--master-weights"],
            "which are the master weights: omit --master-",
        ),
        ([*RANKS, "--param-dtype", "bf16", "--optimizer", "none"], "--param-dtype goes with --optimizer"),
        ([*RANKS, "--node-ranks", 2], "--node-ranks divides a host: give --host, --lanes or --machine too"),
        ([*RANKS, "--optimizer", "none"], "it has no optimizer updates: add them with --optimizer adamw"),
    ],
)
def test_contradicting_options_are_refused(plan: Plan, arguments: list[Any], line: str) -> None:
    result = plan("size", "model.py", "--gpu", "rtx3060", "--batch", 8, *arguments)
    assert result.exit_code == 2
    assert line in result.stderr.replace("\n", " ")


# ── what is resident on a rank ──────────────────────────────────────────────────────────────────────


@pytest.mark.scripts
@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9))
def test_no_schedule_is_below_the_minimum_and_shares_alone_are_resident(seed: int, count: int) -> None:
    made = chain(random.Random(seed).randint(2, 6), seed=seed)
    peers = Peers(1e9, 1e-5, ranks=count)
    graph = sharded(with_updates(made, optimizer=ADAMW, when="in-backward", device_rate=1e11), peers)
    machine = Machine(links=Links(peers=peers))
    graph = replace(graph, machine=machine)
    shares = sum(
        peers.share_of(int(graph.tensors.bytes[x])) for x in graph.tensors.spread if graph.persistent[x]
    )
    assert graph.share_bytes == shares
    whole = int(graph.tensors.bytes[graph.resident].sum())
    assert shares <= graph.resident_bytes < whole
    assert minimum_of(graph, machine) == max(minimum_memory(graph, machine), graph.resident_bytes - shares)
    for _policy, schedule, _figures in policy_schedules(Problem(graph, 2**50, machine)):
        figures = simulate(graph, schedule, machine=machine).figures
        assert minimum_of(graph, machine) <= figures.least_budget
