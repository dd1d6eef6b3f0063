"""Copies on the disk come back as they were, or are refused in one line, and nothing is left of them."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from away import overwrite
from hypothesis import given, settings
from hypothesis import strategies as some
from memplan.devices.storage import disk as module
from memplan.devices.storage.checksum import checksum
from memplan.devices.storage.disk import Disk, File
from memplan.devices.storage.extents import Extents
from memplan.devices.storage.host_buffers import Host
from memplan.graphs.errors import InputError, MemplanError
from memplan.planner.addresses.pinned import PAGE

MIB = 2**20
SIZES = (0, 1, PAGE, PAGE + 904, MIB + 1, 3 * module.PIECE + 7)


def filled(size: int, offset: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (size + offset,), dtype=torch.uint8)[offset:]


@pytest.mark.parametrize("direct", [True, False])
def test_what_was_written_comes_back(direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any size, from and to any address; what lies beside it stays."""
    if not direct:
        monkeypatch.setattr(Disk, "_go_direct", lambda _disk: False)
    disk = Disk(0, tmp_path)
    files: list[tuple[File, torch.Tensor]] = []
    for size in SIZES:
        for offset in (0, 8):
            source = filled(size, offset)
            file = disk.file(size + 50)
            file.write(source)
            files.append((file, source))
    assert disk.direct is direct or not direct
    for file, source in files:
        for offset in (0, 8):
            target = torch.full((len(source) + 60 + offset,), 7, dtype=torch.uint8)[offset:]
            file.read(target)
            assert torch.equal(target[: len(source)], source)
            assert bool((target[len(source) :] == 7).all())
        mapped = file.mapped()
        assert torch.equal(mapped, source)
        mapped.fill_(3)  # it does not reach the file
        assert torch.equal(file.mapped(), source)
    assert disk.count.bytes == sum(file.size for file, _source in files)


def test_large_blocks_of_the_host_need_no_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Host().block(2 * MIB).open()
    disk = Disk(2 * MIB, tmp_path)
    if not disk.direct:
        pytest.skip("this file system has no O_DIRECT")
    monkeypatch.setattr(disk, "_buffer", lambda: pytest.fail("by way of a buffer"))
    disk.file(2 * MIB).write(block.bytes)


# ── extents ─────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None)
@given(some.integers(0, 2**32))
def test_extents_never_meet_and_room_is_used_again(seed: int) -> None:
    rng, extents = random.Random(seed), Extents()
    there: dict[int, int] = {}
    most = 0
    for _turn in range(200):
        if there and rng.random() < 0.5:
            start = rng.choice(list(there))
            extents.give_back(start, there.pop(start))
        else:
            size = rng.randint(1, 9)
            start = extents.take(size)
            assert all(start + size <= s or s + n <= start for s, n in there.items())
            there[start] = size
        most = max(most, sum(there.values()))
        assert all(start + size <= extents.end for start, size in there.items())
    assert extents.end <= 4 * most  # first fit wastes no more here
    for start, size in there.items():
        extents.give_back(start, size)
    assert extents.take(extents.end) == 0


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────


def zeroed(data: bytearray) -> None:
    data[5 * PAGE : 6 * PAGE] = bytes(PAGE)


def torn(data: bytearray) -> None:
    data[-512:] = os.urandom(512)


def shifted(data: bytearray) -> None:
    data[:] = data[8:] + data[:8]


def swapped(data: bytearray) -> None:
    data[:PAGE], data[PAGE : 2 * PAGE] = data[PAGE : 2 * PAGE], data[:PAGE]


def one_bit(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


@pytest.mark.parametrize("damage", [zeroed, torn, shifted, swapped, one_bit])
def test_a_checksum_sees_damage(damage: Callable[[bytearray], None]) -> None:
    for size in (8 * PAGE, 8 * PAGE + 100):
        data = bytearray(os.urandom(size))
        before = checksum(np.frombuffer(bytes(data), np.uint8))
        damage(data)
        assert checksum(np.frombuffer(bytes(data), np.uint8)) != before


@pytest.mark.skipif(sys.platform != "linux", reason="finds the file in /proc")
def test_bytes_that_are_not_those_written_are_refused(tmp_path: Path) -> None:
    disk = Disk(0, tmp_path)
    source = filled(2 * MIB)
    file = disk.file(2 * MIB)
    file.write(source)
    overwrite(file, bytes(PAGE))
    for look in (file.mapped, lambda: file.read(torch.empty(2 * MIB, dtype=torch.uint8))):
        with pytest.raises(
            MemplanError, match="comes back with other bytes: give another folder"
        ) as reported:
            look()
        assert str(tmp_path) in str(reported.value)
        assert "\n" not in str(reported.value)
    file.write(source)
    assert torch.equal(file.mapped(), source)


def test_bytes_that_are_wrong_once_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, source, move = Disk(0, tmp_path), filled(2 * MIB), module._all
    file, faults = disk.file(2 * MIB), [1]
    file.write(source)

    def wrong_once(way: Any, data: Any, offset: int) -> None:
        move(way, data, offset)
        if faults:
            faults.pop()
            data[0] ^= 1

    monkeypatch.setattr(module, "_all", wrong_once)
    target = torch.empty(2 * MIB, dtype=torch.uint8)
    file.read(target)
    assert torch.equal(target, source)
    assert not faults


# ── room ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(MIB, tmp_path)
    there, source = disk.file(MIB), filled(MIB)
    there.write(source)  # in what was reserved

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_allocate", full)
        with pytest.raises(MemplanError, match=r"can't offload to it: No space left on device"):
            disk.file(MIB).write(source)
        with pytest.raises(InputError, match=r"can't offload to it: No space left on device"):
            Disk(MIB, tmp_path)
    assert disk.count.bytes == MIB
    other = disk.file(MIB)
    other.write(source)
    for file in (there, other):
        assert torch.equal(file.mapped(), source)


def test_a_copy_that_was_not_written_to_the_end_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, source = Disk(0, tmp_path), filled(3 * MIB)
    file, calls = disk.file(3 * MIB), list[int]()

    def fails(_way: Any, _data: Any, _offset: int) -> None:
        calls.append(1)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_all", fails)
        with pytest.raises(MemplanError, match=r"can't write: Input/output error"):
            file.write(source)
    assert calls
    with pytest.raises(MemplanError, match=r"can't read: it was not written to the end"):
        file.mapped()


@pytest.mark.scripts
def test_an_extent_is_there_as_long_as_somebody_looks_at_it(tmp_path: Path) -> None:
    disk, source = Disk(0, tmp_path), filled(MIB)
    file = disk.file(MIB)
    file.write(source)
    mapped = file.mapped()
    del file
    gc.collect()
    disk.file(MIB).write(filled(MIB))
    assert torch.equal(mapped, source)
    del mapped
    gc.collect()
    assert disk.count.bytes == 0
    gone = weakref.ref(disk)
    del disk
    gc.collect()
    assert gone() is None


KILLED = """
import os, signal, torch
from pathlib import Path
from memplan.devices.storage.disk import Disk
disk = Disk(2**22, Path())
file = disk.file(2**22)
file.write(torch.ones(2**22, dtype=torch.uint8))
assert not os.listdir()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals")
def test_whoever_is_killed_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not list(tmp_path.iterdir())
