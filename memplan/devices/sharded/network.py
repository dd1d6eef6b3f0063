"""The network between the ranks, measured by the collectives that iterations run.

    seconds = latency + received bytes / rate      through two sizes, on the slowest rank

A network's queue has gathers and scatters, of which it takes the mean: a scatter may take longer, since it
adds up. Shares are summed up over replicas by collectives of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

import torch

from ...graphs.machine import Peers, Replicas
from ..device.choice import device_of
from .ranks import Ranks

SIZES = (2**12, 2**22)
"""Bytes of the full tensors."""

ROUNDS = 5
"""Runs of each collective: as many on each rank, or they would wait for ever."""

Run = Callable[[], None]


def measure_network(ranks: Ranks) -> Peers:
    """Measure the network. All ranks call it together."""
    # Whole float32 numbers in each share.
    sizes = [-(-size // (4 * ranks.shards)) * 4 * ranks.shards for size in SIZES]
    small, large = ((_worst(ranks, _gather(ranks, n)) + _worst(ranks, _scatter(ranks, n))) / 2 for n in sizes)
    rate, latency = _line([size - size // ranks.shards for size in sizes], small, large)
    if ranks.replicas == 1:
        return Peers(rate, latency, ranks=ranks.shards)
    # A ring's all-reduce passes all bytes but a rank's own twice: once added up, once whole.
    passed = [int(size * (2 - 2 / ranks.replicas)) for size in SIZES]
    between = _line(passed, *(_worst(ranks, _average(ranks, size)) for size in SIZES))
    return Peers(rate, latency, ranks=ranks.shards, replicas=Replicas(*between, count=ranks.replicas))


def _line(received: list[int], small: float, large: float) -> tuple[float, float]:
    """Return the bytes/s and the latency of two measurements."""
    seconds = max(large - small, 1e-9) / max(received[1] - received[0], 1)
    return 1 / seconds, max(0.0, small - seconds * received[0])


def _worst(ranks: Ranks, run: Run) -> float:
    """Return the seconds of the slowest rank."""
    seconds, device = math.inf, device_of(ranks.device)
    for _ in range(ROUNDS):
        begun = perf_counter()
        run()
        device.synchronize()
        # The least of a rank, since disturbances only add; then the most of all, who wait for it.
        seconds = min(seconds, perf_counter() - begun)
    return max(ranks.gathered(seconds))


def _gather(ranks: Ranks, size: int) -> Run:
    share = torch.zeros(size // ranks.shards, dtype=torch.uint8, device=ranks.device)
    full = torch.empty(size, dtype=torch.uint8, device=ranks.device)
    return lambda: ranks.gather([(share, full)])


def _scatter(ranks: Ranks, size: int) -> Run:
    """Return a scatter of so many bytes, without what follows between replicas."""
    gradient = torch.zeros(size // 4, device=ranks.device)
    share = torch.empty(size // 4 // ranks.shards, device=ranks.device)
    return lambda: ranks.scatter_in_row([(gradient, share)])


def _average(ranks: Ranks, size: int) -> Run:
    share = torch.zeros(size // 4, device=ranks.device)
    return lambda: ranks.average_replicas([share])
