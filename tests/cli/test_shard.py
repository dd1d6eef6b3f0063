"""`plan shard`, and networks of `plan machine`: what is written can be solved, checked and shown."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from memplan.cli.main import main
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.machine import load_machine
from memplan.graphs.generators import chain
from memplan.graphs.machine import Machine, Peers, Replicas, Updates
from memplan.graphs.machines.hosts import SERVER, parse_host
from memplan.graphs.machines.networks import LATENCY, NETWORKS, find_network, find_replicas
from memplan.graphs.transformations.mixed_precision import MASTER
from memplan.graphs.transformations.sharding import rank_bytes
from memplan.graphs.transformations.updates import Optimizer, with_updates


def plan(*words: str, code: int = 0) -> Result:
    """Run the command; it must end with this code."""
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.stderr
    return result


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_graph(replace(chain(6), machine=Machine(updates=Updates(device=1e8))), Path("graph.json"))
    return Path("graph.json")


def test_a_sharded_graph_is_written_solved_checked_and_shown(graph: Path) -> None:
    network, solver = ("--ranks", "4", "--link", "1MB/s,1ms"), ("--solver", "fsdp", "--bound-time", "1")
    words = ("shard", str(graph), *network, "--optimizer", "adamw", "-o", "s.json", "--json")
    found: dict[str, Any] = json.loads(plan(*words).stdout)
    sharded = load_graph("s.json")
    assert found["ranks"] == 4
    assert found["spread"] == len(sharded.tensors.spread) == 6 * 2
    assert found["share_bytes"] == found["spread_bytes"] // 4
    assert sharded.machine is not None
    assert sharded.machine.links.peers == Peers(1e6, 1e-3, ranks=4)
    solved = plan("solve", "s.json", *solver, "--budget", "100%", "-o", "schedule.json").stdout
    checked = plan("check", "schedule.json", "--graph", "s.json")
    assert "valid" in checked.stdout
    shown = plan("show", "schedule.json", "--graph", "s.json").stdout
    assert "6 gathers" in shown
    assert "6 scatters" in shown
    assert "prefetches" not in shown
    policy = json.loads(Path("schedule.json").read_text())["solver"]["policy"]
    assert policy == "keep"
    for text in (solved, shown):
        assert re.search(rf"^policy +{policy}$", text, re.MULTILINE), text
    plan("report", "schedule.json", "--graph", "s.json", "-o", "page.html")
    packed = Path("page.html").read_text().split('id="data">')[1].split("<")[0]
    assert f"policy {policy}" in json.loads(gzip.decompress(b64decode(packed)))["origin"]
    compared = plan("compare", "schedule.json", "schedule.json").stdout
    assert re.search(r"solved in +policy", compared), compared
    by_auto = ("solve", "s.json", "--budget", "100%", "--time-limit", "0.01", "--bound-time", "0")
    plan(*by_auto, "-o", "auto.json")
    named = json.loads(Path("auto.json").read_text())["solver"]
    assert named["name"] == "auto"
    assert named.get("policy", policy) == policy


def test_replicas_are_in_the_graph(graph: Path) -> None:
    network = ("--ranks", "4", "--link", "1MB/s,1ms", "--replicas", "2", "--replica-link", "1MB/s,2ms")
    words = ("shard", str(graph), *network, "--optimizer", "adamw", "-o", "s.json")
    shown = plan(*words).stdout
    assert "4 ranks, 0.001 GB/s, 1.00 ms a collective" in shown
    assert "2 replicas, 0.001 GB/s, 2.00 ms an all-reduce" in shown
    found: dict[str, Any] = json.loads(plan(*words, "--json").stdout)
    assert found["replicas"] == {"count": 2, "rate": 1e6, "latency": 2e-3}
    machine = load_graph("s.json").machine
    assert machine is not None
    assert machine.links.peers == Peers(1e6, 1e-3, ranks=4, replicas=Replicas(1e6, 2e-3, count=2))
    times: list[float] = []
    for file in ("s.json", "alone.json"):
        solved = plan("solve", file, "--solver", "fsdp", "--budget", "100%", "--bound-time", "1", "--json")
        times.append(json.loads(solved.stdout)["time"])
        plan("shard", str(graph), *network[:4], "--optimizer", "adamw", "-o", "alone.json")
    assert times[0] > times[1]
    same = plan("shard", str(graph), *network[:6], "--optimizer", "sgd", "-o", "t.json").stdout
    assert "2 replicas, 0.001 GB/s, 1.00 ms an all-reduce" in same
    refused = plan("shard", str(graph), *network[:4], *network[6:], code=2)
    assert "--replica-link goes with --replicas" in refused.stderr


TIED = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(96, 32), nn.Linear(32, 32)

    def forward(self, x):
        return nn.functional.linear(self.layer(self.table(x)), self.table.weight).logsumexp(-1).sum()

def build():
    return Tied(), (torch.zeros(4, 8, dtype=torch.int64),), lambda loss: loss
"""


def test_a_tied_weight_estimated_for_a_gpu_is_sharded_and_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the documentation's commands alone: one device sums its gradients up in place, and has addresses."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TIED)
    plan("profile", "model.py", "--estimate", "--gpu", "h100", "--optimizer", "adamw", "-o", "graph.json")
    graph = load_graph("graph.json")
    (changed,) = (x for x, name in enumerate(graph.tensors.name) if name == "table.weight.grad")
    assert len(graph.mutators[changed])
    plan("shard", "graph.json", "--ranks", "2", "--link", "pcie4", "-o", "sharded.json")
    for solver in ("auto", "fsdp"):
        words = ("--solver", solver, "--budget", "100%", "--time-limit", "1", "--bound-time", "1")
        plan("solve", "sharded.json", *words, "-o", "schedule.json")
        assert "valid" in plan("check", "schedule.json", "--graph", "sharded.json").stdout


def test_what_is_missing_is_named(graph: Path) -> None:
    refused = plan("shard", str(graph), "--ranks", "4", code=2)
    assert "it has no optimizer updates: add them with --optimizer adamw" in refused.stderr
    refused = plan("shard", str(graph), "--ranks", "4", "--link", "nvlnk", "--optimizer", "sgd", code=2)
    assert "did you mean 'nvlink'?" in refused.stderr
    refused = plan("machine", "h100", "--ranks", "8", code=2)
    assert "--ranks and --link go together" in refused.stderr


def test_masters_are_the_shares_of_mixed_precision(graph: Path) -> None:
    """The graph has 16 bits by its states alone: they have twice the bytes of the weights."""
    states = Optimizer("adamw", ("exp_avg", "exp_avg_sq", MASTER))
    low = with_updates(load_graph(graph), optimizer=states, when="after", device_rate=1e8, state_scale=2.0)
    save_graph(low, Path("low.json"))
    network = ("--ranks", "4", "--link", "1MB/s,1ms")
    plan("shard", "low.json", *network, "--param-dtype", "bf16", "-o", "s.json")
    alone = load_graph("s.json")
    plan("shard", "low.json", *network, "--param-dtype", "bf16", "--reduce-dtype", "fp32", "-o", "t.json")
    summed = load_graph("t.json")
    assert rank_bytes(alone) == rank_bytes(summed) == sum(alone.tensors.shares.values()) * 3
    assert len(summed.operations) == len(alone.operations) + 6
    plan("shard", "low.json", *network, "--param-dtype", "bf16", "--offload-shares", "-o", "u.json")
    assert rank_bytes(load_graph("u.json")) == rank_bytes(alone)
    for words, line in (
        (
            (str(graph), "--optimizer", "adamw", "--param-dtype", "bf16"),
            "its weights have no float32 masters",
        ),
        (("low.json", "--reduce-dtype", "bf16"), "--reduce-dtype goes with --param-dtype bfloat16"),
    ):
        assert line in plan("shard", *words, *network, code=2).stderr.replace("\n", " ")
    save_graph(replace(low, machine=None), Path("none.json"))
    words = ("none.json", *network, "--param-dtype", "bf16", "--reduce-dtype", "float32")
    assert (
        "its machine says nothing of updates, whose speed casts have" in plan("shard", *words, code=2).stderr
    )


def test_a_machine_file_says_ranks_and_network(graph: Path) -> None:
    plan("machine", "h100", "--ranks", "8", "--link", "ib400", "-o", "eight.yaml")
    words = ("shard", str(graph), "--optimizer", "sgd", "-o", "s.json")
    found: dict[str, Any] = json.loads(plan(*words, "--machine", "eight.yaml", "--json").stdout)
    assert found["ranks"] == 8
    assert found["link"] == {"rate": 45e9, "latency": LATENCY}
    refused = plan(*words, "--machine", "eight.yaml", "--ranks", "4", code=2)
    assert "a network of 8 ranks: give --ranks 8 without --replicas, or give --link too" in refused.stderr
    same = plan(*words, "--machine", "eight.yaml", "--ranks", "8", "--json")
    assert json.loads(same.stdout) == found
    other = plan(*words, "--machine", "eight.yaml", "--ranks", "4", "--link", "nvlink", "--json")
    assert json.loads(other.stdout)["ranks"] == 4
    assert "how many ranks? Give --ranks 8" in plan(*words, code=2).stderr


def test_networks_are_measured_between_processes_of_torchrun(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del graph
    refused = plan("machine", "--network", code=2)
    assert "--network measures between processes that torchrun starts: torchrun" in refused.stderr
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refused = plan("machine", "--network", "--device", "cpu", code=2)
    assert "--network needs two processes or more: torchrun" in refused.stderr
    monkeypatch.setenv("WORLD_SIZE", "4")
    for replicas in ("3", "4"):
        refused = plan("machine", "--network", "--device", "cpu", "--replicas", replicas, code=2)
        assert f"--replicas {replicas} does not divide the 4 processes into sets of two" in refused.stderr
    for words, said in (
        (
            ("h100", "--network"),
            "NAME, --list and measuring (--device, --disk, --network) do not go together",
        ),
        (("--network", "--ranks", "2", "--link", "nvlink"), "--network measures what --ranks and --link"),
        (("--replicas", "2"), "--replicas goes with --network"),
    ):
        assert said in " ".join(plan("machine", *words, code=2).stderr.split())


def test_machines_have_networks(graph: Path) -> None:
    del graph
    shown = plan("machine", "h100", "--ranks", "8", "--link", "ib400", "-o", "eight.yaml").stdout
    assert "8 ranks, 45 GB/s, 30.0 µs a collective" in shown
    assert load_machine(Path("eight.yaml")).links.peers == NETWORKS["ib400"].peers(8)
    listed: dict[str, Any] = json.loads(plan("machine", "--list", "--json").stdout)
    assert {each["name"] for each in listed["networks"]} == {"nvlink", "pcie4", "pcie5", "ib400", "eth100"}


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("NVLink", Peers(350e9, LATENCY, ranks=2)),
        ("45GB/s", Peers(45e9, LATENCY, ranks=2)),
        ("45GB/s,5us", Peers(45e9, 5e-6, ranks=2)),
        ("45GB/s,5us,slot", Peers(45e9, 5e-6, ranks=2)),
        ("45GB/s,adapter", Peers(45e9, LATENCY, ranks=2)),
    ],
)
def test_a_network_is_found(text: str, peers: Peers) -> None:
    assert find_network(text, 2) == peers


@pytest.mark.parametrize("text", ["", "fast", "45GB/s,soon", "-1GB/s"])
def test_an_unknown_network_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no network is called") as refusal:
        find_network(text, 2)
    assert str(refusal.value).count("\n") == 0
    with pytest.raises(InputError, match="0 ranks"):
        find_network("nvlink", 0)
    with pytest.raises(InputError, match="1 replicas: give the number of sets of ranks"):
        find_replicas("nvlink", 1)


@pytest.mark.parametrize(("text", "meant"), [("45", "45GB/s"), ("45,30us", "45GB/s"), ("4500/s", "4500MB/s")])
def test_a_rate_without_a_unit_is_refused(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"^network '{text}': .* without a unit is .* write {meant}, or "):
        find_network(text, 2)
    with pytest.raises(InputError, match="80 without a unit is 80 bytes a second"):
        parse_host("64GB,16cores,80/s", SERVER)


@pytest.mark.scripts
def test_shares_of_weights_are_offloaded_and_updated_on_the_host(graph: Path) -> None:
    """The smallest budget is less than without --offload-shares."""
    machine = (
        "host: {capacity: 1GB}\nlinks: {d2h: 1MB/s, h2d: 1MB/s}\nupdates: {device: 100MB/s, host: 50MB/s}\n"
    )
    Path("machine.yaml").write_text(machine)
    network = ("--ranks", "2", "--link", "1MB/s,1ms", "--machine", "machine.yaml", "--optimizer", "adamw")
    least: list[int] = []
    for more in ((), ("--offload-shares",)):
        plan("shard", str(graph), *network, *more, "-o", "s.json")
        refused = plan("solve", "s.json", "--solver", "joint", "--budget", "1B", "--time-limit", "2", code=3)
        least.append(int(refused.stderr.split("minimum memory of ")[1].split(" B")[0].replace(",", "")))
    assert least[1] < least[0]
    assert any(mode.on_host for modes in load_graph("s.json").operations.modes.values() for mode in modes)
    words = ("--solver", "joint", "--time-limit", "2", "--budget", f"{least[0] - 1}B", "-o", "schedule.json")
    of_cuda = load_graph("s.json")  # whose schedules have addresses, if its ranks do not communicate
    save_graph(replace(of_cuda, source={**of_cuda.source, "device": "cuda"}), Path("s.json"))
    plan("solve", "s.json", *words)
    assert "valid" in plan("check", "schedule.json", "--graph", "s.json").stdout
    shown = json.loads(plan("show", "schedule.json", "--graph", "s.json", "--json").stdout)
    assert shown["collectives"]["steps"] >= 6 * 2
    assert (
        f"{shown['collectives']['steps']} collectives"
        in plan("show", "schedule.json", "--graph", "s.json").stdout
    )
