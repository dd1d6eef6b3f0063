"""The network between ranks, measured: an oracle whose collectives take known seconds, and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate_on_cpus import free_port
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.devices.sharded.meshes import Mesh
from memplan.devices.sharded.network import measure_network
from memplan.devices.sharded.ranks import Ranks
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.files.machine import load_machine
from memplan.graphs.generators import chain
from not_none import not_none
from ranks import ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

pytestmark = pytest.mark.scripts

RATE, LATENCY = 5e7, 4e-3
SLOWER, BETWEEN = 1.25, 2.0
"""Factors: of rank 1's seconds, and of a replica's latency and seconds per byte."""


def slowed(rank: int, size: int, replicas: int) -> dict[str, Any]:
    """Measure a network whose collectives do nothing but take their time, rank 1's a little more."""
    calls = dict[str, int]()
    factor = SLOWER if rank == 1 else 1.0

    def sleeping(name: str, received: float, times: float = 1.0) -> None:
        calls[name] = calls.get(name, 0) + 1
        time.sleep(factor * times * (LATENCY + received / RATE))

    class Slow(Ranks):
        def gather(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
            ((share, full),) = pairs
            sleeping("gather", full.nbytes - share.nbytes)

        def scatter_in_row(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
            ((gradient, share),) = pairs
            sleeping("scatter", gradient.nbytes - share.nbytes)

        def average_replicas(self, shares: Sequence[Tensor]) -> None:
            (share,) = shares
            sleeping("average", 2 * (replicas - 1) / replicas * share.nbytes, BETWEEN)

    mesh: Mesh = True
    if replicas > 1:
        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=names)
    group = Slow(mesh, torch.device("cpu"))
    try:
        return {"peers": measure_network(group), "calls": calls}
    finally:
        group.end()


@pytest.mark.parametrize(("size", "replicas"), [(2, 1), (4, 2)])
def test_rate_and_latency_are_those_of_the_slowest_rank(tmp_path: Path, size: int, replicas: int) -> None:
    """All ranks make as many calls, and find the same."""
    found = ranks(slowed, tmp_path, size, replicas, size=size)
    assert all(isinstance(each, dict) for each in found), found
    assert [each["calls"] for each in found] == [found[0]["calls"]] * size
    assert [each["peers"] for each in found] == [found[0]["peers"]] * size
    peers = found[0]["peers"]
    assert peers.ranks == size // replicas
    assert peers.rate == pytest.approx(RATE / SLOWER, rel=0.1)
    assert peers.latency == pytest.approx(LATENCY * SLOWER, rel=0.3)
    if replicas > 1:
        assert peers.replicas.count == replicas
        assert peers.replicas.rate == pytest.approx(RATE / SLOWER / BETWEEN, rel=0.1)
        assert peers.replicas.latency == pytest.approx(LATENCY * SLOWER * BETWEEN, rel=0.3)


def test_the_command_writes_a_machine_that_graphs_are_sharded_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", place]
    plan = ["-m", "memplan", "machine", "--network", "--device", "cpu", "-o", "two.yaml"]
    known = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *command, *plan], env=known, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("between ranks") == 1  # the first rank alone says what was measured
    peers = not_none(load_machine(Path("two.yaml")).links.peers)
    assert peers.ranks == 2
    assert peers.rate > 0
    save_graph(chain(4), Path("graph.json"))
    words = ("shard", "graph.json", "--machine", "two.yaml", "--optimizer", "sgd", "-o", "sharded.json")
    sharded = CliRunner().invoke(main, words)
    assert sharded.exit_code == 0, sharded.stderr
    assert not_none(load_graph("sharded.json").machine).links.peers == peers
