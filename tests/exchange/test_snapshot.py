"""CUDA memory snapshots: the plain curve is the measured one, by an account of its own; refusals.

No GPU made these: they are built by the structure that torch.cuda.memory._snapshot documents.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memplan.cli.main import main
from memplan.exchange.formats import Options, read
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry.run import solve

FRAMES = [
    {"filename": "??", "name": "at::empty", "line": 0},
    {"filename": "/site-packages/torch/nn/modules/linear.py", "name": "forward", "line": 125},
    {"filename": "/home/a/train.py", "name": "step", "line": 12},
]
Entry = dict[str, Any]
BLOCK = 512


def entry(action: str, addr: int, size: int, time_us: int) -> Entry:
    """addr, size: in blocks of 512 bytes."""
    row = {"action": action, "addr": addr * BLOCK, "size": size * BLOCK, "stream": 0, "time_us": time_us}
    return {**row, "frames": FRAMES}


def snapshot(trace: list[Entry], blocks: list[tuple[int, bool]] = []) -> dict[str, Any]:  # noqa: B006
    """blocks: of one segment at address 0: size, in blocks of 512 bytes, whether in use."""
    blocks = [(size * BLOCK, used) for size, used in blocks]
    rows = [
        {
            "size": size,
            "requested_size": size,
            "state": "active_allocated" if used else "inactive",
            "frames": [],
        }
        for size, used in blocks
    ]
    total = sum(size for size, _used in blocks)
    segment = {"device": 0, "address": 0, "total_size": total, "stream": 0, "blocks": rows}
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": {}}


def imported(value: object, folder: Path, **options: Any) -> Graph:
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(value))
    return read("snapshot", folder / "snapshot.pickle", Options(**options))


def test_life_spans_times_and_lines(tmp_path: Path) -> None:
    trace = [
        entry("free_requested", 64, 8, 5),  # was there before
        entry("free_completed", 64, 8, 5),
        entry("alloc", 0, 16, 10),
        entry("segment_alloc", 4096, 4096, 12),
        entry("alloc", 128, 32, 20),
        entry("free_requested", 0, 16, 25),
        entry("free_completed", 0, 16, 40),
        entry("alloc", 0, 4, 50),
        entry("snapshot", 0, 0, 60),
    ]
    graph = imported(snapshot(trace, [(4, True), (124, False), (32, True), (100, True)]), tmp_path)
    assert graph.name == "snapshot"
    assert list(graph.operations.name) == ["before", "alloc1", "alloc2", "alloc3"]
    assert graph.operations.time.tolist() == pytest.approx([0, 10e-6, 30e-6, 10e-6])
    assert graph.operations.layer[1] == "train.py:12 step"
    assert graph.resident_bytes == 100 * BLOCK
    curve = [100 + 8, 100 + 16, 100 + 16 + 32, 100 + 32 + 4]
    assert baseline(graph).peak == max(curve) * BLOCK
    assert [graph.tensors.bytes[tensor] // BLOCK for tensor in graph.results] == [32, 4]
    assert graph.source["reserved_bytes"] == (4 + 124 + 32 + 100) * BLOCK


def test_blocks_count_as_the_allocator_gives_them_out(tmp_path: Path) -> None:
    """What is asked for in a trace, rounded up; what segments say of blocks that are still there."""
    trace = [entry("alloc", 0, 1, 1), entry("free_requested", 0, 1, 2), entry("alloc", 0, 1, 3)]
    trace += [entry("alloc", 4, 1, 4), entry("alloc", 9, 1, 5)]
    for row, size in zip(trace, (1000, 1000, 1000, 0, 513), strict=True):
        row["size"] = size
    graph = imported(snapshot(trace, [(4, True), (5, True)]), tmp_path)
    found = [size // BLOCK for size in graph.tensors.bytes.tolist() if size]
    assert found == [2, 4, 5, 2]


def test_nothing_of_a_snapshot_can_run_again_so_a_smaller_budget_is_refused_at_once(tmp_path: Path) -> None:
    trace = [entry("alloc", 0, 16, 10), entry("alloc", 128, 32, 20), entry("free_requested", 0, 16, 25)]
    trace += [entry("alloc", 300, 4, 50)]
    graph = imported(snapshot(trace, [(4, False), (124, True), (32, True), (100, True)]), tmp_path)
    peak = baseline(graph).peak
    assert minimum_memory(graph) == peak
    with pytest.raises(
        InfeasibleError,
        match=r"the budget is below the minimum memory of .* without offloading; with offloading",
    ):
        solve("auto", Problem(graph, peak - BLOCK), time_limit=5)
    assert solve("auto", Problem(graph, peak), time_limit=5).figures.peak == peak
    moving = Machine(links=Links(1e9, 1e9))
    assert minimum_memory(graph, moving) < peak


def test_a_snapshot_without_a_clock_says_so(tmp_path: Path) -> None:
    trace = [entry("alloc", 0, 16, 10), entry("alloc", 128, 32, 20)]
    for clocked in (True, False):
        (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(trace)))
        result = CliRunner().invoke(main, ["import", "snapshot", str(tmp_path / "s.pickle")])
        assert result.exit_code == 0
        assert ("all operations take 0 s" in result.stderr) is not clocked
        for row in trace:
            row.pop("time_us", None)


def random_trace(random: Random) -> tuple[list[Entry], int]:
    """Entries, and the most bytes in use after any of them, counted as they are made."""
    early = {1000 + index: random.randrange(1, 9) for index in range(random.randrange(3))}
    live, trace = dict(early), list[Entry]()
    now = peak = sum(live.values())
    for step in range(random.randrange(1, 25)):
        if live and random.random() < 0.45:
            address = random.choice([*live])
            size = live.pop(address)
            now -= size
            trace.append(entry("free_requested", address, size, step))
            if random.random() < 0.8:
                trace.append(entry("free_completed", address, size, step))
        else:
            address = random.choice([place for place in range(50) if place not in live])
            live[address] = random.randrange(1, 9)
            now += live[address]
            peak = max(peak, now)
            trace.append(entry("alloc", address, live[address], step))
    for address in early.keys() & live.keys():  # the file's segments would have those; here all are freed
        trace.append(entry("free_requested", address, early[address], 99))
    return trace, peak


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_peak_is_the_measured_one(tmp_path: Path, random: Random) -> None:
    trace, peak = random_trace(random)
    if trace:
        graph = imported(snapshot(trace), tmp_path)
        assert baseline(graph).peak == peak * BLOCK


def test_a_device_of_several(tmp_path: Path) -> None:
    two = snapshot([entry("alloc", 0, 16, 1)])
    two["device_traces"].append([entry("alloc", 0, 48, 1)])
    assert baseline(imported(two, tmp_path, device=1)).peak == 48 * BLOCK
    with pytest.raises(InputError, match="devices 0, 1: choose by --device"):
        imported(two, tmp_path)
    with pytest.raises(InputError, match="no trace of device 5, but of 0, 1"):
        imported(two, tmp_path, device=5)
    with pytest.raises(InputError, match="--device is not for moccasin: it is for snapshot"):
        read("moccasin", tmp_path / "m.json", Options(device=1))


FAULTS: dict[str, tuple[object, str]] = {
    "no-mapping": ([], "a snapshot must be a mapping"),
    "only-segments": ({"segments": []}, "device_traces must be a list"),
    "not-recorded": (snapshot([]), "has no trace: call torch.cuda.memory._record_memory_history()"),
    "action": (snapshot([entry("explode", 0, 1, 1)]), "device 0, entry 0: the action 'explode' is not known"),
    "twice": (snapshot([entry("alloc", 0, 1, 1)] * 2), "entry 1: address 0x0 is allocated twice"),
    "no-size": (snapshot([{"action": "alloc", "addr": 1}]), "size must be a whole number"),
    "no-address": (snapshot([{"action": "alloc", "size": 1}]), "addr must be a whole number"),
    "frames": (snapshot([{**entry("alloc", 0, 1, 1), "frames": "x"}]), "frames must be a list"),
    "object": (snapshot([{**entry("alloc", 0, 1, 1), "size": Path()}]), "names pathlib"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line(fault: str, tmp_path: Path) -> None:
    value, words = FAULTS[fault]
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(value))
    result = CliRunner().invoke(main, ["import", "snapshot", str(tmp_path / "s.pickle")])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert words in result.stderr
