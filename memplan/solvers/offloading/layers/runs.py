"""Training layer by layer, recomputing inside a layer what is not kept: the runs, and where layers begin.

    forward 0 … n-2 │ forward and backward of n-1 │ recomputation and backward of n-2 │ … │ of 0 │ updates

The last layer's backward follows its forward at once, so nothing of it is recomputed. What a layer's forward
makes is kept, or recomputed right before its backward from what is kept. Updates run early
(early_updates.py), or after the whole backward part; on the CPU if requested. Linear in the edges but for
one sort.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ....graphs.graph import Graph, Phase
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run, in_default_mode
from ...chains.runs import lightest_mode, producers
from .early_updates import early_updates
from .training import TrainingLayers


@dataclass(frozen=True)
class LayerRuns:
    """The runs of an iteration layer by layer, and the sections in which they are.

    starts: the position at which each section of the picture starts, and the end of the last one.
    layer_of: per section its layer. Sections up to and with `turn` go forward, those from `turn` on backward;
    first_backward: the position where backward begins.
    """

    runs: list[Run]
    starts: list[int]
    layer_of: list[int]
    first_backward: int

    @property
    def turn(self) -> int:
        # 2 n − 1 sections of n layers and the end make 2 n starts; section n − 1 is the turn.
        return len(self.starts) // 2 - 1

    def section(self, position: int) -> int:
        """Return the section of a run; updates belong to the section after whose runs they come."""
        return min(bisect_right(self.starts, position), len(self.layer_of)) - 1


def first_backward(graph: Graph, runs: Sequence[Run]) -> int:
    """Return the position of the first backward run; the number of runs if there is none."""
    phase = graph.operations.phase
    return next((p for p, (o, _mode) in enumerate(runs) if phase[o] == Phase.BACKWARD), len(runs))


def always_kept(layers: TrainingLayers) -> set[int]:
    """Return the tensors that no layer can recompute by itself.

    These are outputs, shared tensors, what other layers' backward or operations of no layer read, and the
    results of operations that run once.
    """
    graph = layers.graph
    kept = set(layers.chain.shared)
    producer: dict[int, int] = {}
    for number, layer in enumerate(layers.layers):
        if layer.output is not None:
            kept.add(layer.output)
        for operation in layer.forward:
            made = [x for x, _bit in graph.contributions(operation)]
            producer |= dict.fromkeys(made, number)
            if not graph.operations.recompute[operation] or graph.mutate_lists[operation]:
                kept.update(made)
    inside = {o for layer in layers.layers for o in layer.forward}
    for number, layer in enumerate(layers.layers):
        inside.update(layer.backward)
        for operation in layer.backward:
            # Another layer's backward would have to run this layer's forward.
            kept.update(x for x in graph.read_lists[operation] if producer.get(x, number) != number)
    for operation in set(layers.order) - inside:
        kept.update(x for x in graph.read_lists[operation] if x in producer)
    return kept


def all_kept(layers: TrainingLayers) -> set[int]:
    """Return all that forward produces: nothing is recomputed."""
    made = {x for layer in layers.layers for o in layer.forward for x, _bit in layers.graph.contributions(o)}
    return made | always_kept(layers)


def recomputed(layers: TrainingLayers, number: int, kept: AbstractSet[int]) -> dict[int, set[int]]:
    """Return the forward operations that a layer's backward recomputes, in order, with the results needed of
    each."""
    graph, layer = layers.graph, layers.layers[number]
    return producers(
        graph, layer.forward, {x for o in layer.backward for x in graph.read_lists[o] if x not in kept}, kept
    )


def layer_runs(
    layers: TrainingLayers, kept: AbstractSet[int], *, host: bool = False, after: bool = False
) -> LayerRuns:
    """Return the runs of an iteration, layer by layer.

    kept: activations that are not recomputed, with all of `always_kept`.
    host: updates run on the CPU if they can. after: updates come after all the rest, not early.
    """
    graph, count = layers.graph, len(layers.layers)
    runs: list[Run] = []
    starts: list[int] = []
    for number in range(count - 1):
        starts.append(len(runs))
        runs += _first_runs(layers, number, kept)
    starts.append(len(runs))
    # The turn: the last layer's forward and backward are one section.
    runs += in_default_mode((*layers.layers[-1].forward, *layers.layers[-1].backward))
    for number in reversed(range(count - 1)):
        starts.append(len(runs))
        # Only what this layer's backward reads, and not what the variant could make besides.
        runs += [(o, lightest_mode(graph, o, x)) for o, x in recomputed(layers, number, kept).items()]
        runs += in_default_mode(layers.layers[number].backward)
    own = {operation for operation, _mode in runs}
    rest = _rest(layers, own, host=host)
    whole = [*runs, *_by_first_use(graph, runs, rest)] if after else early_updates(graph, [*runs, *rest])
    # Updates in between shift the positions: `starts` counts the layers' own runs alone.
    place = [*(position for position, (operation, _mode) in enumerate(whole) if operation in own), len(whole)]
    return LayerRuns(
        whole,
        [*(place[start] for start in starts), len(whole)],
        [*range(count), *reversed(range(count - 1))],
        first_backward(graph, whole),
    )


def _first_runs(layers: TrainingLayers, number: int, kept: AbstractSet[int]) -> list[Run]:
    """Return the runs of a layer's forward, without operations that its backward alone needs and
    recomputes."""
    graph, forward = layers.graph, layers.layers[number].forward
    later = recomputed(layers, number, kept)
    # What backward doesn't recompute must run now; random operations too, to draw in traced order.
    always = {o for o in forward if o not in later or graph.operations.random[o]}
    targets = {x for o in forward for x, _bit in graph.contributions(o) if x in kept}
    wanted = producers(graph, forward, targets, frozenset(), always)
    return [(o, lightest_mode(graph, o, x)) for o, x in wanted.items()]


def _rest(layers: TrainingLayers, there: AbstractSet[int], *, host: bool) -> list[Run]:
    """Return the runs of the operations that are missing in `there`, in traced order."""
    rest = sorted(o for o in layers.order if o not in there)
    on_host = {o: layers.host_modes([o]) if host else None for o in rest}
    return [(on_host[o] or [(o, DEFAULT_MODE)])[0] for o in rest]


def _by_first_use(graph: Graph, runs: Sequence[Run], rest: list[Run]) -> list[Run]:
    """Sort updates by the first use of their weights, as an optimizer walks over a model's parameters.

    So the first waits for the last gradient. They stay in order if one depends on another.
    """
    changed = [x for o, _mode in rest for x in graph.mutate_lists[o]]
    others = [x for o, _mode in rest for x in set(graph.read_lists[o]) - set(graph.mutate_lists[o])]
    made = any(graph.contributions(o, mode) for o, mode in rest)
    # One update changes or makes what another reads or changes: their order matters.
    if made or len(set(changed)) < len(changed) or not set(changed).isdisjoint(others):
        return rest
    first: dict[int, int] = {}
    for position, (operation, _mode) in enumerate(runs):
        for x in graph.read_lists[operation]:
            first.setdefault(x, position)
    used = {o: [first.get(x, len(runs)) for x in graph.mutate_lists[o]] for o, _mode in rest}
    return sorted(rest, key=lambda run: min(used[run[0]], default=len(runs)))
