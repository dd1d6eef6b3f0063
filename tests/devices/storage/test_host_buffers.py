"""Host memory as blocks: where each begins, what is counted, and who gets an address in the arena."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from memplan.devices.storage import host_buffers
from memplan.devices.storage.host_buffers import Host
from memplan.devices.storage.shortage import ShortageError
from memplan.planner.addresses.pinned import PAGE


class Arena:
    """An arena of ordinary memory."""

    def __init__(self, size: int) -> None:
        self.size, self.memory = size, torch.zeros(size, dtype=torch.uint8)

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        return self.memory[offset : offset + size]


def host(size: int = 0) -> Host:
    return Host(arena=cast("Any", Arena(size) if size else None))


@pytest.mark.parametrize(("size", "alignment"), [(1, 64), (2**20 - 1, 64), (2**20, PAGE), (2**20 + 1, PAGE)])
def test_blocks_begin_where_kernels_and_the_disk_want_them(size: int, alignment: int) -> None:
    blocks = [host().block(size).open() for _ in range(8)]
    assert all(block.bytes.data_ptr() % alignment == 0 for block in blocks)
    assert {block.bytes.nbytes for block in blocks} == {size}


def test_bytes_count_while_a_block_is_there() -> None:
    mine, other = host(), host()
    first, second = mine.block(10), mine.block(7).open().open()
    assert (first.is_open, second.is_open, mine.block(0).is_open) == (False, True, True)
    first.open()
    assert (mine.count.bytes, mine.count.peak) == (17, 17)
    second.move(other)
    assert (mine.count.bytes, other.count.bytes) == (10, 7)
    del first
    gc.collect()
    assert (mine.count.bytes, mine.count.peak) == (0, 17)
    held = mine.block(4)
    made = torch.arange(6, dtype=torch.uint8)
    held.hold(made)  # what was made elsewhere counts with its own bytes
    assert held.bytes is made is held.taken()
    assert (mine.count.bytes, mine.count.peak) == (6, 17)


@pytest.mark.parametrize(
    ("size", "offset", "room", "fits"),
    [
        (8, 0, 8, True),
        (8, 8, 8, True),
        (8, 9, 8, False),
        (9, 0, 8, False),
        (8, None, 8, False),
        (4, 0, 8, True),
    ],
)
def test_an_address_is_given_within_the_arena_alone(
    size: int, offset: int | None, room: int, fits: bool
) -> None:
    block = host(16).block(size, offset, room).open()
    assert (block.offset, block.is_pinned) == ((offset, True) if fits else (None, False))
    assert host().block(size, offset, room).offset is None


def test_content_moves_with_its_address() -> None:
    mine = host(16)
    block = mine.block(4, 0, 4)
    block.hold(torch.tensor([1, 2, 3, 4], dtype=torch.uint8))
    assert mine.arena is not None
    assert cast("Any", mine.arena).memory.tolist() == [1, 2, 3, 4] + 12 * [0]
    kept = block.taken()
    block.lie(8, 4)
    assert cast("Any", mine.arena).memory[8:12].tolist() == [1, 2, 3, 4]
    cast("Any", mine.arena).memory.zero_()
    assert kept.tolist() == [1, 2, 3, 4]  # a copy: others may use the address
    block.lie(None)
    assert not block.is_pinned
    assert mine.count.bytes == 4


@pytest.mark.parametrize(
    ("needed", "left", "refused"),
    [(100, 0, None), (101, 0, 100), (101, 1, None), (100, -1, 99), (1, -200, 0)],
)
def test_a_step_needs_what_is_there(
    needed: int, left: int, refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_buffers, "available_bytes", lambda: 100)
    if refused is None:
        assert Host(needed, left).needed == needed
        return
    there = 100 + min(left, 0) if left > -100 else 0
    with pytest.raises(ShortageError, match=rf"needs {needed} bytes of host memory, {there} are available"):
        Host(needed, left)


def test_a_host_that_does_not_say_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffers, "available_bytes", lambda: None)
    Host(10**18)

    def full(_size: int, _dtype: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(host_buffers, "np", SimpleNamespace(empty=full, uint8=None))
    with pytest.raises(ShortageError, match="the host has no memory for another 5 bytes"):
        host().block(5).open()
