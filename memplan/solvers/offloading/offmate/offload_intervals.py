"""The offload intervals of whole tensors: the fractions of an answer, group by group, through Algorithm 8.

Of a group, the part updated on the CPU is taken to leave the device first and to come back last, as in the
program: that costs no copy out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ..o_ilp.activations import Activation
from ..o_ilp.model import OIlpProgram
from ..o_ilp.round import IntegerSolution
from ..o_ilp.states import StateStocks
from ..o_ilp.tensors import LITTLE, OffloadSteps, Rounding, intervals
from ..o_ilp.weights import WeightStocks


def tensor_intervals(
    graph: Graph, program: OIlpProgram, choice: IntegerSolution, x: Floats
) -> Iterator[OffloadSteps]:
    """Yield the offload intervals of all groups, states and activations, in steps of the cycle; their items
    are tensors.
    """
    rounding = Rounding()
    # In the order of the cycle: what rounding leaves of one group is carried to the next.
    order = sorted(range(len(program.weights)), key=lambda g: program.weights[g].origin)
    for g in order:
        yield from _weights_offloaded(graph, program.weights[g], choice.hosted[g], x, rounding)
    for g in order:
        hosted = choice.hosted[g]
        yield from _states_offloaded(
            graph, program.weights[g], states=program.states[g], hosted=hosted, x=x, rounding=rounding
        )
    blocks, hosted_gradients = len(program.choice), _hosted_gradients(program, choice)
    for number, activation in enumerate(program.activations):
        if number < blocks:
            kept = program.iteration.blocks[number][choice.options[number]].kept
        else:
            kept = set(program.iteration.carried[number - blocks].tensors) - hosted_gradients
        yield from _activation_offloaded(
            graph, program, activation=activation, tensors=sorted(kept), x=x, rounding=rounding
        )


def on_disk(graph: Graph, program: OIlpProgram, choice: IntegerSolution, x: Floats) -> set[int]:
    """Return the tensors that are on the disk while they are not used.

    Of the weights, only those updated on the device are among them.
    """
    rounding, chosen = Rounding(), set[int]()
    for weights, states, hosted in zip(program.weights, program.states, choice.hosted, strict=True):
        parcels = weights.group.parcels
        on_device = [t for n, parcel in enumerate(parcels) if n not in hosted for t in parcel.weights]
        all_states = [t for parcel in parcels for t in parcel.states]
        group = weights.group
        for share, size, tensors in (
            (weights.disk.value(x), group.bytes, on_device),
            (states.disk.value(x), group.state_bytes, all_states),
        ):
            if share > LITTLE:
                sizes = [int(graph.tensors.bytes[t]) for t in tensors]
                part = share * size
                chosen.update(tensors[i] for i in rounding.share("disk", sizes, part))
    return chosen


def _hosted_gradients(program: OIlpProgram, choice: IntegerSolution) -> set[int]:
    """Return the gradients of updates on the CPU, which go to the host in any case."""
    groups = zip(program.iteration.groups, choice.hosted, strict=True)
    return {t for group, hosted in groups for number in hosted for t in group.parcels[number].gradients}


def _weights_offloaded(
    graph: Graph, stocks: WeightStocks, hosted: frozenset[int], x: Floats, rounding: Rounding
) -> Iterator[OffloadSteps]:
    share = stocks.program.share.value(x)
    part = min(share, stocks.on_host.value(x))
    stored = [min(share, c.value(x)) for c in stocks.stored]
    for on_host in (False, True):
        parcels = [p for n, p in enumerate(stocks.group.parcels) if (n in hosted) == on_host]
        tensors = [t for parcel in parcels for t in parcel.weights]
        whole = part if on_host else share - part
        if not tensors or whole <= 0:
            continue
        sizes = [int(graph.tensors.bytes[t]) for t in tensors]
        scale = sum(sizes) / whole
        # Of the bytes stored, the device's part counts first; the CPU's part is what exceeds it.
        below = share - part if on_host else 0.0
        wanted = [min(whole, max(0.0, s - below)) * scale for s in stored]
        left = None
        if stocks.trained and not on_host:
            left = [0.0, *(min(whole, c.value(x)) * scale for c in stocks.left[1:])]
        if on_host:
            wanted[1 : stocks.window] = [float(sum(sizes))] * (stocks.window - 1)
        yield from _intervals_of(
            stocks, tensors, sizes=sizes, stored=wanted, left=left, rounding=rounding, kind="weights"
        )


def _states_offloaded(
    graph: Graph,
    weights: WeightStocks,
    states: StateStocks,
    hosted: frozenset[int],
    x: Floats,
    rounding: Rounding,
) -> Iterator[OffloadSteps]:
    parcels = [p for n, p in enumerate(weights.group.parcels) if n not in hosted]
    tensors = [t for parcel in parcels for t in parcel.states]
    sizes = [int(graph.tensors.bytes[t]) for t in tensors]
    whole = weights.program.share.value(x) - weights.on_host.value(x)
    if states.size and tensors and whole > 0:
        scale = sum(sizes) / whole
        wanted = [min(whole, c.value(x)) * scale for c in states.stored]
        left = [min(whole, c.value(x)) * scale for c in states.left]
        yield from _intervals_of(
            weights, tensors, sizes=sizes, stored=wanted, left=left, rounding=rounding, kind="states"
        )


def _intervals_of(
    stocks: WeightStocks,
    tensors: Sequence[int],
    sizes: Sequence[int],
    stored: list[float],
    left: list[float] | None,
    rounding: Rounding,
    kind: str,
) -> Iterator[OffloadSteps]:
    """Yield the offload intervals of some tensors, gap by gap between the steps that need all of them."""
    total = float(sum(sizes))
    ends = [d for d in range(1, stocks.steps) if stocks.step(d) in stocks.group.uses and kind == "weights"]
    for gap, (start, end) in enumerate(pairwise([0, *ends, stocks.steps])):
        # A step that uses the tensors needs all of them.
        stored[start] = total
        stored[start + 1 : end] = rounding.wish((kind, gap), sizes, stored[start + 1 : end])
    if left is not None:
        # What isn't stored must have left, also after rounding; at step 0 the update has just made it.
        left = [
            max(out, total - s) if d else 0.0 for d, (out, s) in enumerate(zip(left, stored, strict=True))
        ]
    for interval in intervals(sizes, stored, left):
        out = -1 if interval.out < 0 else stocks.step(interval.out)
        yield OffloadSteps(
            tensors[interval.item], out, stocks.step(interval.gone), stocks.step(interval.back)
        )


def _activation_offloaded(
    graph: Graph,
    program: OIlpProgram,
    activation: Activation,
    tensors: Sequence[int],
    x: Floats,
    rounding: Rounding,
) -> Iterator[OffloadSteps]:
    sizes = [int(graph.tensors.bytes[t]) for t in tensors]
    kept = activation.kept.value(x)
    if not activation.stored or not sizes or kept <= 0:
        return
    total = float(sum(sizes))
    # From the program's units to bytes.
    scale = total / kept
    stored = [total, *(min(total, c.value(x) * scale) for c in activation.stored.values())]
    left = [0.0, *(min(total, c.value(x) * scale) for c in activation.left.values())]
    stored[1:] = rounding.wish("activations", sizes, stored[1:])
    left = [max(out, total - s) for out, s in zip(left, stored, strict=True)]
    for interval in intervals(sizes, stored, left):
        made = activation.made
        yield OffloadSteps(
            tensors[interval.item], made + interval.out, made + interval.gone, made + interval.back
        )
