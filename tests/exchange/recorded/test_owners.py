"""Recordings of memory: their peaks by an account of their own, the kinds of blocks, and their lines."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from memplan.exchange.recorded.owners import (
    ACTIVATIONS,
    BACKWARD,
    BEFORE,
    RECOMPUTED,
    STATES,
    STEP,
    UNKNOWN,
    WEIGHTS,
    kinds,
    lines,
    modules,
)
from memplan.exchange.recorded.read import read_recording
from memplan.exchange.recorded.recording import Recording
from memplan.graphs.errors import InputError
from torch import nn
from torch.profiler import ProfilerActivity, profile

BLOCK = 512
TORCH = "/usr/lib/python3/site-packages/torch/"
USER = {"filename": "/home/a/train.py", "name": "step", "line": 12}


def frame(file: str, name: str) -> dict[str, Any]:
    return {"filename": TORCH + file, "name": name, "line": 1}


FORWARD = [frame("nn/modules/linear.py", "forward"), USER]
WEIGHT = [frame("nn/modules/module.py", "_apply"), USER]
STATE = [frame("optim/adamw.py", "_init_group"), USER]
GRADIENT = [frame("autograd/__init__.py", "_engine_run_backward"), USER]
AGAIN = [frame("utils/checkpoint.py", "recompute_fn"), *GRADIENT]


def entry(action: str, address: int, size: int = 1, frames: list[dict[str, Any]] = FORWARD) -> dict[str, Any]:
    """address, size: in blocks of 512 bytes."""
    return {"action": action, "addr": address * BLOCK, "size": size * BLOCK, "stream": 0, "frames": frames}


def snapshot(
    trace: list[dict[str, Any]], kept: Sequence[tuple[int, list[dict[str, Any]]]] = ()
) -> dict[str, Any]:
    """kept: blocks from address 0 on that are in use at the end: their size, and their frames."""
    rows = [{"size": size * BLOCK, "state": "active_allocated", "frames": frames} for size, frames in kept]
    segment = {"device": 0, "address": 0, "total_size": 2**20, "blocks": rows}
    return {"segments": [segment], "device_traces": [trace]}


def recorded(document: object, folder: Path, device: int | None = None) -> Recording:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(document))
    return read_recording(path, device)


def by_kind(recording: Recording) -> dict[str, int]:
    return {one.name: one.size // BLOCK for one in kinds(recording)}


def test_kinds_follow_the_stack(tmp_path: Path) -> None:
    trace = [
        entry("alloc", 100, 8, WEIGHT),
        entry("alloc", 200, 4),
        entry("alloc", 210, 3, AGAIN),
        entry("alloc", 220, 8, GRADIENT),
        entry("alloc", 230, 16, STATE),
        entry("alloc", 250, 2, STATE),
        entry("alloc", 260, 1, []),
        entry("alloc", 270, 5, [USER]),
        *(entry("free_requested", address, size) for address, size in ((250, 2), (200, 4))),
    ]
    found = by_kind(recorded(snapshot(trace), tmp_path))
    assert found == {
        WEIGHTS: 8, STATES: 16, ACTIVATIONS: 4, RECOMPUTED: 3, BACKWARD: 8 + 1, STEP: 2, UNKNOWN: 5,
    }  # fmt: skip


def test_blocks_from_before_the_recording_count(tmp_path: Path) -> None:
    trace = [entry("free_completed", 500, 6), entry("alloc", 300, 4), entry("free_requested", 300, 4)]
    trace.append(entry("free_completed", 300, 4))
    found = recorded(snapshot(trace, [(7, WEIGHT), (2, [])]), tmp_path)
    assert found.peak == (7 + 2 + 6) * BLOCK
    assert by_kind(found) == {WEIGHTS: 7, ACTIVATIONS: 6, BEFORE: 2}
    alone = recorded({**snapshot([], [(7, WEIGHT), (2, [])]), "device_traces": []}, tmp_path)
    assert by_kind(alone) == {WEIGHTS: 7, BEFORE: 2}


def test_the_peak_is_that_of_an_account_of_its_own(tmp_path: Path) -> None:
    random = Random(3)
    for _number in range(30):
        live, trace, most, now = dict[int, int](), list[dict[str, Any]](), 0, 0
        for address in range(1000, 1000 + random.randrange(1, 60)):
            if live and random.random() < 0.4:
                gone = random.choice([*live])
                trace.append(entry("free_requested", gone, live[gone]))
                now -= live.pop(gone)
            live[address] = random.randrange(1, 9)
            trace.append(entry("alloc", address, live[address]))
            now += live[address]
            most = max(most, now)
        found = recorded(snapshot(trace), tmp_path)
        assert found.peak == most * BLOCK == sum(one.size for one in found.at_peak())


def test_lines_are_the_users(tmp_path: Path) -> None:
    package = {"filename": "/x/site-packages/transformers/m.py", "name": "forward", "line": 3}
    trace = [entry("alloc", 1, 3), entry("alloc", 9, 2, [FORWARD[0], package]), entry("alloc", 20, 1, [])]
    found = lines(recorded(snapshot(trace), tmp_path))
    assert [(one.name, one.size // BLOCK, one.kind) for one in found] == [
        ("train.py:12 step", 3, ACTIVATIONS),
        ("m.py:3 forward", 2, ACTIVATIONS),
        ("(no Python code in the stack)", 1, BACKWARD),
    ]


def test_an_allocation_that_failed_is_known(tmp_path: Path) -> None:
    trace = [entry("alloc", 1, 3), {"action": "oom", "size": 4096, "device_free": 0, "frames": []}]
    assert recorded(snapshot(trace), tmp_path).oom == 4096


def test_a_profile_has_the_memory_that_pytorch_counts(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.ones(2048, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as run:
        for _step in range(2):
            module(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "trace.json"
    run.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    memory = [one["args"] for one in document["traceEvents"] if one.get("name") == "[memory]"]
    found = read_recording(path)
    assert found.peak == max(one["Total Allocated"] for one in memory)
    sizes = {one.name: one.size for one in kinds(found)}
    assert sizes[STATES] >= 2 * sum(one.nbytes for one in module.parameters())
    assert sizes[ACTIVATIONS] >= 3 * x.nbytes
    assert {"Linear_0", "GELU_0", "Linear_1"} <= {one.name for one in modules(found)}
    assert any(one.name.startswith("test_owners.py:") for one in lines(found))
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_recording(packed).peak == found.peak


def test_what_was_there_before_a_profile_counts(tmp_path: Path) -> None:
    def event(size: int, total: int, address: int, time: int, device: int = 0) -> dict[str, Any]:
        args = {"Bytes": size, "Total Allocated": total, "Total Reserved": 4096, "Addr": address}
        args |= {"Device Type": 1, "Device Id": device}
        return {"ph": "i", "name": "[memory]", "tid": 1, "ts": time, "args": args}

    events = [event(100, 1100, 1, 1), event(-400, 700, 2, 2), event(50, 50, 3, 3, device=1)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read_recording(path)
    assert (found.device, found.peak, found.reserved) == ("cuda:0", 1100, 4096)
    assert {one.name: one.size for one in kinds(found)} == {BEFORE: 1000, UNKNOWN: 100}
    assert read_recording(path, 1).peak == 50
    with pytest.raises(InputError, match="has nothing of device 7, but of cuda:0, cuda:1"):
        read_recording(path, 7)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (pickle.dumps(Evil()), "names posix.system, which is not read: it could run anything"),
        (pickle.dumps([1]), "a snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[], []]}), "has no memory"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": "x"}]]}), "addr"),
        (b"import torch\n", "is not a pickle: it does not begin or end like one; a snapshot of torch.cuda"),
        (b"", "is not a pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "git lfs pull"),
        (b"SQLite format 3\0 ", "is an SQLite database; PyTorch writes its snapshots as pickles"),
        (b'{"model_type": "gpt2"}', "is not a trace of torch.profiler: it has no traceEvents"),
        (b'{"traceEvents": []}', "has no events of memory: profile with profile_memory=True"),
        (b'{"traceEvents": [', "line 1: not JSON"),
    ],
)
def test_other_files_are_one_line(content: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_recording(path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has nothing of device 3, but of 0"):
        recorded(snapshot([entry("alloc", 1)]), tmp_path, 3)
