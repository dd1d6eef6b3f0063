"""Training layer by layer, recomputing inside a layer what is not kept: the runs, and where layers begin.

    forward 0 … n-2 │ forward and backward of n-1 │ recomputation and backward of n-2 │ … │ of 0 │ updates

The last layer's backward follows its forward at once, so nothing of it is made again. What a layer's forward
makes is kept, or made again right before its backward from what is kept. Updates run as soon as the gradient
is complete and the weight is no longer read, or behind the whole backward part; on the CPU where asked.
Linear in the edges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ....graphs.graph import Graph
from ....planner.schedule.schedule import PLAIN
from ....planner.schedule.sequence import Run, in_plain_mode
from ...chains.runs import lightest_mode
from .training import TrainingLayers


@dataclass(frozen=True)
class LayerRuns:
    """starts: the position at which each section of the picture starts, and the end of the last one.

    layer_of: per section its layer. Sections up to and with `turn` go forward, those from `turn` on backward.
    """

    runs: list[Run]
    starts: list[int]
    layer_of: list[int]

    @property
    def turn(self) -> int:
        return len(self.starts) // 2 - 1

    def section(self, position: int) -> int:
        """Of a run; updates belong to the section behind whose runs they stand."""
        return min(bisect_right(self.starts, position), len(self.layer_of)) - 1


def always_kept(layers: TrainingLayers) -> set[int]:
    """What no layer can make again by itself: outputs, shared tensors, what other layers' backward reads,
    and what is made by operations that run once."""
    graph = layers.graph
    kept = set(layers.chain.shared)
    maker: dict[int, int] = {}
    for number, layer in enumerate(layers.layers):
        if layer.output is not None:
            kept.add(layer.output)
        for operation in layer.forward:
            made = [x for x, _bit in graph.contributions(operation)]
            maker |= dict.fromkeys(made, number)
            if not graph.operations.recompute[operation] or graph.mutate_lists[operation]:
                kept.update(made)
    for number, layer in enumerate(layers.layers):
        for operation in layer.backward:
            kept.update(x for x in graph.read_lists[operation] if maker.get(x, number) != number)
    return kept


def made_again(layers: TrainingLayers, number: int, kept: AbstractSet[int]) -> dict[int, set[int]]:
    """The forward operations of a layer that its backward needs again, in order, and what of each."""
    graph, layer = layers.graph, layers.layers[number]
    need = {x for o in layer.backward for x in graph.read_lists[o]} - kept
    again: dict[int, set[int]] = {}
    for operation in reversed(layer.forward):
        wanted = {x for x, _bit in graph.contributions(operation) if x in need}
        if wanted:
            again[operation] = wanted
            need.update(x for x in graph.read_lists[operation] if x not in kept)
    return dict(reversed(again.items()))


def layer_runs(layers: TrainingLayers, kept: AbstractSet[int], *, host: bool, after: bool) -> LayerRuns:
    """kept: with all of `always_kept`. host: updates run on the CPU if they can. after: behind the rest."""
    graph, count = layers.graph, len(layers.layers)
    runs: list[Run] = []
    starts: list[int] = []
    wanted = kept | {x for layer in layers.layers for o in layer.forward for x in graph.read_lists[o]}
    for layer in layers.layers[:-1]:
        starts.append(len(runs))
        made = {o: {x for x, _bit in graph.contributions(o)} & wanted for o in layer.forward}
        runs += [(o, lightest_mode(graph, o, made[o])) for o in layer.forward]
    starts.append(len(runs))
    runs += in_plain_mode((*layers.layers[-1].forward, *layers.layers[-1].backward))
    for number in reversed(range(count - 1)):
        starts.append(len(runs))
        runs += [(o, lightest_mode(graph, o, x)) for o, x in made_again(layers, number, kept).items()]
        runs += in_plain_mode(layers.layers[number].backward)
    rest = _rest(layers, runs, host=host)
    if after:
        rest = _by_first_use(graph, runs, rest)
    behind = _places(graph, runs, [operation for operation, _mode in rest], after=after)
    ordered = sorted(zip(behind, rest, strict=True), key=lambda item: item[0])
    whole = _merged(runs, ordered)
    starts = [start + sum(place < start for place in behind) for start in starts]
    return LayerRuns(whole, [*starts, len(whole)], [*range(count), *reversed(range(count - 1))])


def _merged(runs: Sequence[Run], behind: Sequence[tuple[int, Run]]) -> list[Run]:
    """behind: by position, which runs follow those there."""
    whole: list[Run] = []
    start = 0
    for place, run in behind:
        whole += [*runs[start : place + 1], run]
        start = max(start, place + 1)
    return [*whole, *runs[start:]]


def _rest(layers: TrainingLayers, runs: Sequence[Run], *, host: bool) -> list[Run]:
    """The operations that are not among the runs, in the file's order."""
    there = {operation for operation, _mode in runs}
    rest = [o for o in layers.order if o not in there]
    on_host = {o: layers.host_modes([o]) if host else None for o in rest}
    return [(on_host[o] or [(o, PLAIN)])[0] for o in sorted(rest)]


def _by_first_use(graph: Graph, runs: Sequence[Run], rest: list[Run]) -> list[Run]:
    """In the order in which forward reads what is changed, as an optimizer walks over a model's parameters:
    so the first waits for the last gradient. As they are, where one depends on another."""
    changed = [x for o, _mode in rest for x in graph.mutate_lists[o]]
    others = [x for o, _mode in rest for x in set(graph.read_lists[o]) - set(graph.mutate_lists[o])]
    made = any(graph.contributions(o, mode) for o, mode in rest)
    if made or len(set(changed)) < len(changed) or not set(changed).isdisjoint(others):
        return rest
    first: dict[int, int] = {}
    for position, (operation, _mode) in enumerate(runs):
        for x in graph.read_lists[operation]:
            first.setdefault(x, position)
    return sorted(rest, key=lambda run: min(first.get(x, len(runs)) for x in graph.mutate_lists[run[0]]))


def _places(graph: Graph, runs: Sequence[Run], rest: Sequence[int], *, after: bool) -> list[int]:
    """For each operation of the rest the run behind which it may stand: all it needs is made, all that must
    come before its changes has run."""
    touched: dict[int, int] = {}
    made: dict[int, int] = {}
    for position, (operation, _mode) in enumerate(runs):
        made |= dict.fromkeys((x for x, _bit in graph.contributions(operation)), position)
        touched |= dict.fromkeys(graph.read_lists[operation], position)
    places: list[int] = []
    for operation in rest:
        reads, mutates = graph.read_lists[operation], graph.mutate_lists[operation]
        place = max(
            len(runs) - 1 if after else 0,
            *(made.get(x, 0) for x in (*reads, *mutates)),
            *(touched.get(x, 0) for x in mutates),
            0,
        )
        made |= dict.fromkeys((*(x for x, _bit in graph.contributions(operation)), *mutates), place)
        touched |= dict.fromkeys(reads, place)
        places.append(place)
    return places
