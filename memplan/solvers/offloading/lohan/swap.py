"""LoHan's Algorithm 1: the activations to swap, in the order of the time that each byte saves.

Liao et al. (arXiv:2403.06504), section IV-D. A layer of the paper is here a forward operation, its activation
what backward reads of its outputs. OB (6) = seconds to recompute them from the others / their bytes.
Recomputation stays within a layer of the chain (layers/runs.py), so the layers' outputs, A_interBlock, are
always swapped; the last layer keeps all. O(n log n) for n operations besides recomputing one layer for each.

Corrected. Printed, T_min starts at infinity, so the amount swapped so far is never compared with one layer
more, and the test A >= A_interBlock counts the layer that is then left out. Here every prefix of the order,
that of A_interBlock alone included, is weighed. T_iter is convex in A only along this order and only if
seconds add up (7); over all subsets the best prefix is not always the best, though close.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from math import fsum

from ...chains.runs import lightest_mode
from ..layers.runs import always_kept, recomputed
from ..layers.training import TrainingLayers
from .costs import Traffic


@dataclass(frozen=True)
class Swap:
    """One swap of Algorithm 1: the activations of an operation.

    tensors: of one operation, in layer `layer`. seconds: to recompute them from all other swaps.
    """

    layer: int
    tensors: frozenset[int]
    bytes: int
    seconds: float

    @property
    def benefit(self) -> float:
        """Return the seconds saved per byte swapped (6)."""
        return self.seconds / max(self.bytes, 1)


@dataclass(frozen=True)
class Prefix:
    """A prefix of the order: the first `count` swaps.

    bytes: swapped in all. recomputed: seconds. seconds: T_iter.
    """

    count: int
    bytes: int
    recomputed: float
    seconds: float


class SwapOrder:
    """The swaps in LoHan's order.

    always: what every prefix swaps. swaps: by benefit, the largest first.
    """

    def __init__(self, layers: TrainingLayers) -> None:
        self.layers = layers
        self.kept = always_kept(layers)
        self.always = [layer.output for layer in layers.layers if layer.output is not None]
        self.swaps = sorted(self._swaps(), key=lambda swap: -swap.benefit)

    def _swaps(self) -> Iterator[Swap]:
        graph = self.layers.graph
        # The last layer's backward follows at once: it keeps everything.
        for number, layer in enumerate(self.layers.layers[:-1]):
            read = {x for o in layer.backward for x in graph.read_lists[o]}
            there = self.kept & read.union(*(graph.read_lists[o] for o in layer.forward))
            read -= there
            own = {o: frozenset(x for x, _bit in graph.contributions(o) if x in read) for o in layer.forward}
            for tensors in filter(None, own.values()):
                seconds = self._recomputing(number, there | (read - tensors))
                yield Swap(number, tensors, self.layers.size(tensors), seconds)

    def tensors(self, count: int) -> set[int]:
        """Return the tensors that the first `count` swaps offload."""
        return {x for swap in self.swaps[:count] for x in swap.tensors}.union(self.always)

    def prefixes(self, traffic: Traffic) -> list[Prefix]:
        """Return each prefix of the order with its T_iter."""
        seconds = [self._recomputing(number, self.kept) for number in range(len(self.layers.layers) - 1)]
        kept, swapped = set(self.kept), self.layers.size(self.always)
        sizes = accumulate((swap.bytes for swap in self.swaps), initial=swapped)
        found = [Prefix(0, swapped, sum(seconds), traffic.seconds(swapped, sum(seconds)))]
        next(sizes)
        for count, (swap, size) in enumerate(zip(self.swaps, sizes, strict=True), start=1):
            kept |= swap.tensors
            # Recomputed with all swaps so far: benefits are estimates from all others, seconds are exact.
            seconds[swap.layer] = self._recomputing(swap.layer, kept)
            found.append(Prefix(count, size, sum(seconds), traffic.seconds(size, sum(seconds))))
        return found

    def _recomputing(self, number: int, kept: AbstractSet[int]) -> float:
        """Return the seconds in which a layer recomputes all but what is kept."""
        graph = self.layers.graph
        repeats = recomputed(self.layers, number, kept).items()
        return fsum(graph.seconds(o, lightest_mode(graph, o, wanted)) for o, wanted in repeats)


def best_prefix(prefixes: Iterable[Prefix]) -> Prefix:
    """Return the fastest prefix; of equals the one that swaps least."""
    return min(prefixes, key=lambda prefix: (prefix.seconds, prefix.bytes))
