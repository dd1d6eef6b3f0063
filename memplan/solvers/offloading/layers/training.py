"""A training graph as layers: what each runs, the weights, gradients and optimizer states that are its own.

    layer 0 ─x_0─▶ layer 1 ─x_1─▶ … ─▶ layer n-1 with the loss ─▶ backward n-1 … 0 ─▶ updates

The layers are the blocks of the graph's chain (graphs/structure/chain.py); a block without weights belongs to
the layer before it, or to the first. A weight belongs to the first layer whose forward reads it, wherever
else it is read (tied weights); its gradient is what the updates that change it read, its states are what they
change with it. An update of several layers' weights is the first one's, whose gradients are complete last.
Linear in the edges but for the chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.structure.chain import Chain, chain_of
from ...candidates import require_backward
from ...problem import NotAcceptedError
from .early_updates import movable_updates
from .host_variants import variants_on_host


@dataclass(frozen=True)
class Layer:
    """One layer: operations in the order in which they run, tensors by number.

    forward: with the loss in the last layer. backward: without the updates among it. updates: wherever they
    stand. weights: parameters, changed or not. gradients: of these weights. states: of the optimizer.
    output: the tensor that the next layer reads, None if there is none or only shared ones.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    updates: tuple[int, ...]
    weights: tuple[int, ...]
    gradients: tuple[int, ...]
    states: tuple[int, ...]
    output: int | None


@dataclass(frozen=True)
class TrainingLayers:
    """A training graph as layers.

    layers: in forward order. order: all operations as the chain runs them, updates as in traced order (in the
    backward part, or after it).
    """

    graph: Graph
    chain: Chain
    layers: tuple[Layer, ...]
    order: tuple[int, ...]

    def seconds(self, operations: Iterable[int]) -> float:
        """Return the seconds of the operations in their standard variants."""
        return float(self.graph.operations.time[list(operations)].sum())

    def size(self, tensors: Iterable[int]) -> int:
        """Return the bytes of tensors."""
        return int(self.graph.tensors.bytes[list(tensors)].sum())

    def sizes(self, tensors: Iterable[int]) -> list[int]:
        """Return the bytes of each tensor."""
        return self.graph.tensors.bytes[list(tensors)].tolist()

    def host_modes(self, operations: Iterable[int]) -> list[tuple[int, int]] | None:
        """Return each operation with its fastest variant on the CPU, as runs.

        None if one has no such variant.
        """
        runs: list[tuple[int, int]] = []
        for operation in operations:
            variants = variants_on_host(self.graph, operation)
            if not variants:
                return None
            runs.append((operation, min(variants)[1]))
        return runs

    @cached_property
    def updates(self) -> list[int]:
        """Return the updates of all layers, layer by layer; so are the three lists of tensors below."""
        return [operation for layer in self.layers for operation in layer.updates]

    @cached_property
    def weights(self) -> list[int]:
        return [x for layer in self.layers for x in layer.weights]

    @cached_property
    def gradients(self) -> list[int]:
        return [x for layer in self.layers for x in layer.gradients]

    @cached_property
    def states(self) -> list[int]:
        return [x for layer in self.layers for x in layer.states]

    @cached_property
    def layer_of_weight(self) -> dict[int, int]:
        return {x: number for number, layer in enumerate(self.layers) for x in layer.weights}


def training_layers(solver: str, graph: Graph) -> TrainingLayers:
    """Return the layers of a graph.

    Raises NotAcceptedError if the graph is not a chain of at least two layers with a backward part, if other
    operations wait for an update, or if one tensor has several updates.
    """
    phase = graph.operations.phase
    require_backward(solver, graph)
    waited_for = set(np.flatnonzero(phase == Phase.UPDATE).tolist()) - movable_updates(graph)
    if waited_for:
        name = graph.operations.name[min(waited_for)]
        raise NotAcceptedError(f"{solver} takes layers with updates at their end; others wait for {name}")
    for x, changes in enumerate(graph.mutators.lists()):
        if graph.persistent[x] and sum(phase[o] == Phase.UPDATE for o in changes) > 1:
            name = graph.tensors.name[x]
            raise NotAcceptedError(f"{solver} takes one update of each tensor; {name} has several")
    finest = chain_of(graph)
    firsts = sorted(set(_first_readers(graph, finest).values()))
    # Block 0 must begin a layer; so what comes before the first weight joins that weight's layer.
    chain = finest.joined([0, *firsts[1:]])
    if len(chain.blocks) < 2:
        raise NotAcceptedError(f"{solver} takes chains of layers with weights; {graph.name} is none")
    weights: list[list[int]] = [[] for _ in chain.blocks]
    owner: dict[int, int] = {}
    for x, number in _first_readers(graph, chain).items():
        weights[number].append(x)
        owner[x] = number
    updates = _updates(graph, chain, owner)
    layers = tuple(
        Layer(
            forward=block.forward,
            backward=tuple(o for o in block.backward if phase[o] != Phase.UPDATE),
            updates=tuple(updates[number]),
            weights=tuple(weights[number]),
            gradients=_of_kind(graph, (graph.read_lists[o] for o in updates[number]), Kind.PARAMETER_GRADIENT)
            if updates[number]
            # A graph without updates leaves its gradients as results.
            else _results(graph, block.backward),
            states=_of_kind(graph, (graph.input_lists[o] for o in updates[number]), Kind.OPTIMIZER_STATE),
            output=block.output,
        )
        for number, block in enumerate(chain.blocks)
    )
    return TrainingLayers(graph, chain, layers, tuple(chain.order()))


def _first_readers(graph: Graph, chain: Chain) -> dict[int, int]:
    """Return per weight the first block whose forward reads it; without one, the last whose backward does."""
    kind = graph.tensors.kind
    passes = [(number, block.forward) for number, block in enumerate(chain.blocks)]
    # Weights that only backward reads come after all forward ones: `setdefault` keeps the first.
    passes += [(number, block.backward) for number, block in reversed(list(enumerate(chain.blocks)))]
    first: dict[int, int] = {}
    for number, operations in passes:
        for operation in operations:
            if graph.operations.phase[operation] != Phase.UPDATE:
                for x in graph.read_lists[operation]:
                    if kind[x] == Kind.PARAMETER:
                        first.setdefault(x, number)
    return first


def _updates(graph: Graph, chain: Chain, owner: dict[int, int]) -> list[list[int]]:
    """Return per block the updates of its weights, in running order.

    An update that changes no weight has no block.
    """
    rows: list[list[int]] = [[] for _ in chain.blocks]
    for operation in chain.order():
        if graph.operations.phase[operation] == Phase.UPDATE:
            changed = [owner[x] for x in graph.mutate_lists[operation] if x in owner]
            if changed:
                # The first layer: its gradients are complete last, which such an update waits for.
                rows[min(changed)].append(operation)
    return rows


def _of_kind(graph: Graph, lists: Iterable[Iterable[int]], kind: Kind) -> tuple[int, ...]:
    touched = dict.fromkeys(x for row in lists for x in row)
    return tuple(x for x in touched if graph.tensors.kind[x] == kind)


def _results(graph: Graph, operations: Iterable[int]) -> tuple[int, ...]:
    """Return the gradients that these operations leave as results, for graphs without updates."""
    results = set(graph.results)
    made = ([x for x, _bit in graph.contributions(o) if x in results] for o in operations)
    return _of_kind(graph, made, Kind.PARAMETER_GRADIENT)
