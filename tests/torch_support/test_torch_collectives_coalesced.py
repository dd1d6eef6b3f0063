"""Collectives of several tensors at once: what each alone would give, in no more memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.ranks import Ranks
from ranks import ranks
from torch import Tensor

pytestmark = pytest.mark.scripts

DTYPES = (torch.float32, torch.bfloat16)
ROUNDS = 20

Pairs = list[tuple[Tensor, Tensor]]


def tensors(rank: int, size: int, seed: int) -> tuple[Pairs, Pairs]:
    """Return pairs to gather, some of which are cast, and pairs to scatter, of one to eight tensors."""
    random, own = Random(seed), torch.Generator().manual_seed(100 * seed + rank)
    lengths = [random.choice((1, 3, 64, 5_000, 300_000)) for _ in range(random.randint(1, 8))]
    gathers = Pairs()
    for length in lengths:
        share = torch.randn(length, generator=own).to(random.choice(DTYPES))
        gathers.append((share, torch.full((length * size,), 7.0, dtype=random.choice(DTYPES))))
    scatters = [(torch.randn(length * size, generator=own), torch.full((length,), 7.0)) for length in lengths]
    return gathers, scatters


def together_and_alone(rank: int, size: int, backend: str) -> list[bool]:
    """Return per round whether several at once fill what one by one fills."""
    group = Ranks(True, torch.device("cpu"))
    group._row._backend = backend
    same = list[bool]()
    for seed in range(ROUNDS):
        found = list[Tensor]()
        for each in (lambda pairs, run: run(pairs), lambda pairs, run: [run([pair]) for pair in pairs]):
            gathers, scatters = tensors(rank, size, seed)
            each(gathers, group.gather)
            found.append(torch.cat([full.float() for _share, full in gathers]))
            if backend == "gloo":
                each(scatters, group.scatter)
                found.append(torch.cat([share for _gradient, share in scatters]))
        half = len(found) // 2
        same += [torch.equal(one, other) for one, other in zip(found[:half], found[half:], strict=True)]
        same.append(all(bool((each != 7).all()) for each in found))
    group.end()
    return same


@pytest.mark.parametrize("size", [2, 3, 4])
def test_several_at_once_are_what_each_alone_is(tmp_path: Path, size: int) -> None:
    """Bit by bit: gathers by messages instead of broadcasts, scatters in the same sums."""
    for same in ranks(together_and_alone, tmp_path, size, "gloo", size=size):
        assert same == [True] * 3 * ROUNDS


def test_a_backend_with_coalesced_collectives_gives_the_same(tmp_path: Path) -> None:
    """The path of NCCL, between CPUs: gloo has its gathers, not its averages."""
    for same in ranks(together_and_alone, tmp_path, 2, "nccl"):
        assert same == [True] * 2 * ROUNDS


def memory(rank: int, size: int) -> list[int]:
    group = Ranks(True, torch.device("cpu"))
    gathers = [(torch.ones(100_000), torch.zeros(100_000 * size)) for _ in range(4)]
    scatters = [(full, share) for share, full in gathers]
    peaks: list[Callable[[], None]] = [lambda: group.gather(gathers), lambda: group.scatter(scatters)]
    found = [live_peak(each).peak_bytes for each in peaks]
    group.end()
    return found


def test_they_need_no_memory_of_their_own(tmp_path: Path) -> None:
    for found in ranks(memory, tmp_path, 2):
        assert max(found) < 64  # scalars


def late(rank: int, size: int) -> Any:
    """Rank 1 leaves before a collective of several tensors."""
    group = Ranks(True, torch.device("cpu"))
    gathers = [(torch.ones(1000), torch.zeros(1000 * size)) for _ in range(4)]
    group.gather(gathers)
    if rank == 1:
        group.leave(ValueError("no more memory"))
        return "left"
    group.gather(gathers)
    return "gathered"


def test_a_rank_that_is_gone_is_named(tmp_path: Path) -> None:
    first, second = ranks(late, tmp_path, 2)
    assert second == "left"
    assert first.startswith("rank 1 of 2 has failed: no more memory; start all ranks anew"), first
