"""The instances of the proof that weight offloading is strongly NP-hard: 3-partition as a training graph.

3-partition: 3m numbers of sum m V, each between V/4 and V/2 (exclusive): are there m parts of sum V? By that
promise a subset of sum V has three numbers, so no partition into parts of another size hides in a "no".

    layers 1 … 2m:    odd ones have |w| = V and take no time; even ones have no weight, and a backward of 1 s
    layers 2m+1 … 5m: |w_i| = x_{i-2m-1}, no time;     F_2m takes m s;   device memory (m + 1) V, links V / s

The transfers of each second must fill it exactly: V bytes up while V bytes come down. So the period is 2m
seconds, no idle time, if and only if the numbers have a partition.

Reference: Beaumont et al. 2022, hal-03580767, Theorem 1 (with the index of the numbers put right, and with
the promise, which the proof uses without saying so).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from random import Random

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.graph import Graph, Kind, Phase
from ..graphs.machine import Links, Machine

_DRAWS = 10_000


@dataclass(frozen=True)
class ThreePartition:
    """An instance of 3-partition. total: V. parts: a partition, None if there is none."""

    numbers: tuple[int, ...]
    total: int
    parts: tuple[tuple[int, ...], ...] | None

    @property
    def count(self) -> int:
        """m, the number of parts."""
        return len(self.numbers) // 3

    @property
    def budget(self) -> int:
        """M_GPU, bytes."""
        return (self.count + 1) * self.total

    @property
    def seconds(self) -> int:
        """The period without idle time: 2m."""
        return 2 * self.count

    def graph(self) -> Graph:
        """Return the graph with the machine of the proof; `budget` is its device's capacity."""
        return _graph(self)


def solvable(count: int, seed: int, total: int = 1000) -> ThreePartition:
    """Return numbers with a partition: those of random parts, shuffled. count: m, from 1. total: V."""
    _check(count, 1, total)
    random = Random(seed)
    parts = tuple(_triple(random, total) for _ in range(count))
    numbers = [x for part in parts for x in part]
    random.shuffle(numbers)
    return ThreePartition(tuple(numbers), total, parts)


def unsolvable(count: int, seed: int, total: int | None = None) -> ThreePartition:
    """Return random numbers with the right sum, drawn until an exhaustive search finds no partition.

    count: m, from 2.
    total: V; if None 50 m², and at least 1000. With much less most numbers have a partition.
    """
    total = max(1000, 50 * count * count) if total is None else total
    _check(count, 2, total)
    random = Random(seed)
    for _ in range(_DRAWS):
        numbers = [x for _ in range(count) for x in _triple(random, total)]
        # The numbers are triples of sum V, and so have a partition until they are shifted.
        for _ in range(6 * count):
            _shift(random, numbers, total)
        if partition(numbers, total) is None:
            return ThreePartition(tuple(numbers), total, None)
    raise InputError(f"no unsolvable numbers found for m = {count}, V = {total}: take a larger V")


def partition(numbers: list[int], total: int) -> tuple[tuple[int, ...], ...] | None:
    """Return parts of three numbers with sum `total` that use each number once, None if there are none.

    The search is exhaustive: the number with the fewest triples left is placed first.
    """
    triples = [t for t in combinations(range(len(numbers)), 3) if sum(numbers[i] for i in t) == total]
    by_number = [[t for t in triples if i in t] for i in range(len(numbers))]
    left = set(range(len(numbers)))
    chosen: list[tuple[int, ...]] = []

    def place() -> bool:
        if not left:
            return True
        # A number without a triple left ends the branch at once.
        options = min(([t for t in by_number[i] if left.issuperset(t)] for i in left), key=len)
        for triple in options:
            left.difference_update(triple)
            chosen.append(triple)
            if place():
                return True
            chosen.pop()
            left.update(triple)
        return False

    return tuple(tuple(numbers[i] for i in triple) for triple in chosen) if place() else None


def _check(count: int, least: int, total: int) -> None:
    if count < least:
        raise InputError(f"m must be {least} or more, not {count}")
    if total < 20:
        raise InputError(f"V must be 20 or more, not {total}")


def _triple(random: Random, total: int) -> tuple[int, int, int]:
    """Return three numbers of sum V within the promise."""
    # Strictly between V / 4 and V / 2.
    low, high = total // 4 + 1, (total - 1) // 2
    while True:
        first, second = random.randint(low, high), random.randint(low, high)
        if low <= total - first - second <= high:
            return first, second, total - first - second


def _shift(random: Random, numbers: list[int], total: int) -> None:
    """Take from one number what another gets, within the promise."""
    giver, taker = random.sample(range(len(numbers)), 2)
    most = min(numbers[giver] - total // 4 - 1, (total - 1) // 2 - numbers[taker])
    amount = random.randint(0, max(0, most))
    numbers[giver] -= amount
    numbers[taker] += amount


def _graph(case: ThreePartition) -> Graph:
    m, volume = case.count, case.total
    sizes = [*([volume, 0] * m), *case.numbers]
    draft = Draft(f"3-partition-{m}")
    x = [draft.tensor("x0", 0, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", size, Kind.PARAMETER) for i, size in enumerate(sizes, start=1)]
    for i, weight in enumerate(weights, start=1):
        x.append(draft.tensor(f"x{i}", 0))
        draft.operation(f"F{i}", time=m * (i == 2 * m), reads=[x[i - 1], weight], writes=[x[i]])
    g = x[-1]
    for i in range(len(weights), 0, -1):
        weight = weights[i - 1]
        gradient = draft.tensor(f"dw{i}", sizes[i - 1], Kind.PARAMETER_GRADIENT)
        down = draft.tensor(f"g{i}", 0, Kind.GRADIENT)
        seconds = int(i <= 2 * m and i % 2 == 0)
        draft.operation(
            f"B{i}", time=seconds, reads=[g, weight], writes=[gradient, down], phase=Phase.BACKWARD
        )
        draft.operation(f"U{i}", time=0, reads=[gradient], mutates=[weight], phase=Phase.UPDATE)
        g = down
    return draft.graph(machine=Machine(device_capacity=case.budget, links=Links(d2h=volume, h2d=volume)))
