"""FSDP2's policies as schedules of a sharded graph: 2 × 3 of them, and those that treat layers unequally.

    weights       reshard: full weights are freed after forward and regathered for backward
                  keep: they stay from forward to backward (`reshard_after_forward=False`)
    activations   all kept; selective: attention and every second product of matrices are kept, the rest of a
                  layer is recomputed; full: a checkpoint around each layer

A `LayeredPolicy` has full checkpoints on the first layers, selective ones on the layers after these, and
regathers the weights of the first ones alone.

A unit is a layer, the outermost module with a number in its name; the rest of the model is the root unit,
whose weights stay. A unit's weights are gathered one unit ahead, each by itself; they are freed after their
last use, and each gradient is scattered as soon as it is complete. Updates come at the end, as
`optimizer.step()` does.

Nothing is chosen, and this is kinder than FSDP2: no buffers for flat units, nothing held until a unit ends.
unit_lifetimes.py has the bytes of FSDP2 itself.

References: torch.distributed.fsdp.fully_shard of PyTorch 2.13; selective checkpointing as in torchtitan.
Linear in the edges but for one sort.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run, in_default_mode, prune
from ...problem import NotAcceptedError
from ...recomputation.checkpointing.layer_checkpoint import numbered
from ...recomputation.checkpointing.layer_checkpoint import runs as checkpointed_runs
from ..layers.early_updates import movable_updates

Activations = Literal["all", "selective", "full"]

_ATTENTION, _PRODUCT = "scaled_dot_product", re.compile(r"/(mm|addmm|bmm)(_\d+)?$")
ROOT = ""
"""Name of the root unit."""


class Policy(NamedTuple):
    """One of FSDP2's policies. activations: which are kept, or how layers are checkpointed."""

    reshard: bool
    activations: Activations

    def __str__(self) -> str:
        weights = "reshard" if self.reshard else "keep"
        words = {"all": "", "selective": ", selective checkpoints", "full": ", checkpoints"}
        return weights + words[self.activations]


class LayeredPolicy(NamedTuple):
    """A policy that is another for some layers.

    layers: their number. full: the first layers, with checkpoints. selective: the layers after these, with
    selective ones. resharded: the first layers, whose weights are regathered for backward.
    """

    layers: int
    full: int
    selective: int
    resharded: int

    def __str__(self) -> str:
        words = [f"reshard {self.resharded} of {self.layers} layers"]
        words += [f"selective checkpoints on {self.selective}"] if self.selective else []
        words += [f"checkpoints on {self.full}"] if self.full else []
        return ", ".join(words)


class _Treatment(NamedTuple):
    """The units that are treated otherwise than by default: checkpointed, or regathered for backward."""

    full: AbstractSet[str]
    selective: AbstractSet[str]
    resharded: AbstractSet[str]


POLICIES = tuple(
    Policy(reshard, activations) for reshard in (True, False) for activations in ("all", "selective", "full")
)


def layers_of(graph: Graph) -> list[str]:
    """Return the layers that have numbers, in the order in which forward runs them."""
    phases = graph.operations.phase
    paths = (path for path, phase in zip(graph.operations.layer, phases, strict=True) if phase < Phase.LOSS)
    return [layer for layer in dict.fromkeys(map(numbered, paths)) if layer]


def _treatment(graph: Graph, policy: Policy | LayeredPolicy) -> _Treatment:
    layers = layers_of(graph)
    if isinstance(policy, LayeredPolicy):
        after = policy.full + policy.selective
        first, then = layers[: policy.full], layers[policy.full : after]
        return _Treatment({*first}, {*then}, {*layers[: policy.resharded]})
    # By default FSDP2 keeps the root's weights after forward, as backward begins with them.
    units = {*layers, *(unit_of(graph, x) for x in graph.tensors.spread)} - {ROOT}
    checkpointed = {way: units if policy.activations == way else set[str]() for way in ("full", "selective")}
    return _Treatment(checkpointed["full"], checkpointed["selective"], units if policy.reshard else set())


def policy_residency(graph: Graph, policy: Policy | LayeredPolicy) -> Residency:
    """Return the decisions of a policy. Raises NotAcceptedError if no layer has a number to checkpoint by."""
    treatment = _treatment(graph, policy)
    keeps = isinstance(policy, Policy) and policy.activations == "all"
    recomputed = None if keeps else treatment
    # A checkpointed layer repeats all its operations; pruned are those whose results nothing reads.
    runs = prune(graph, _updates_last(graph, _runs(graph, recomputed)))
    uses = weight_uses(graph, runs)
    loss = next(
        (place for place, (o, _mode) in enumerate(runs) if graph.operations.phase[o] >= Phase.LOSS), len(runs)
    )
    passes = [_unit_starts(graph, uses, range(loss)), _unit_starts(graph, uses, range(loss, len(runs)))]
    offloaded: dict[TensorUse, int] = {}
    slots: dict[TensorUse, int] = {}
    for x, places in uses.items():
        unit = unit_of(graph, x)
        parts = [[p for p in places if p < loss], [p for p in places if p >= loss]]
        stays = unit not in treatment.resharded  # from forward to backward
        for number, part in enumerate(parts):
            # If it stays, backward gathers only what forward did not use.
            if part and not (number and stays and parts[0]):
                # A tied weight may be used before its own unit's turn: never later than that.
                slots[x, part[0]] = min(_slot(passes[number], unit), part[0])
        if all(parts) and not stays:
            offloaded[x, parts[0][-1]] = Memory.PEERS
        offloaded[x, places[-1]] = Memory.PEERS
    return Residency(runs, offloaded, prefetch_slots=slots)


def _runs(graph: Graph, treatment: _Treatment | None) -> Iterator[Run]:
    """Yield the runs, those of checkpointed layers twice; treatment: None without checkpoints."""
    if treatment is None:
        yield from in_default_mode(range(len(graph.operations)))
        return
    saved = saved_results(graph) if treatment.selective else frozenset[int]()
    done: set[int] = set()
    for run in checkpointed_runs(graph):
        layer = numbered(graph.operations.layer[run[0]])
        repeats = layer in treatment.full or (layer in treatment.selective and run[0] not in saved)
        if run[0] not in done or repeats:
            yield run
        done.add(run[0])


def saved_results(graph: Graph) -> frozenset[int]:
    """Return the operations whose results selective checkpointing keeps."""
    saved, products = set[int](), Counter[str]()
    for o, name in enumerate(graph.operations.name):
        if graph.operations.phase[o] != Phase.FORWARD:
            continue
        if _PRODUCT.search(name):
            # As torchtitan's policy: the first, the third, … product of each layer.
            layer = numbered(graph.operations.layer[o])
            saved |= set() if products[layer] % 2 else {o}
            products[layer] += 1
        elif _ATTENTION in name:
            saved.add(o)
    return frozenset(saved)


def _updates_last(graph: Graph, runs: Iterator[Run]) -> list[Run]:
    moved = movable_updates(graph)
    ordered = list(runs)
    return [*(run for run in ordered if run[0] not in moved), *(run for run in ordered if run[0] in moved)]


def unit_of(graph: Graph, x: int) -> str:
    """Return the unit of a spread tensor."""
    return numbered(graph.tensors.layer[x]) or ROOT


def weight_uses(graph: Graph, runs: Sequence[Run]) -> dict[int, list[int]]:
    """Return per spread weight the positions of the runs that use it on the device."""
    weights = {x for x in graph.tensors.spread if graph.tensors.kind[x] == Kind.PARAMETER}
    uses: dict[int, list[int]] = {}
    for place, (operation, _mode) in enumerate(runs):
        if graph.operations.phase[operation] != Phase.UPDATE:
            for x in graph.input_lists[operation]:
                if x in weights:
                    uses.setdefault(x, []).append(place)
    return uses


def _unit_starts(graph: Graph, uses: dict[int, list[int]], inside: range) -> list[tuple[int, str]]:
    """Return the first run of each unit in a pass over the model, in order. inside: positions of the pass."""
    starts: dict[str, int] = {}
    for x, places in uses.items():
        for place in places:
            if place in inside:
                unit = unit_of(graph, x)
                starts[unit] = min(place, starts.get(unit, place))
    return sorted((place, unit) for unit, place in starts.items())


def _slot(starts: Sequence[tuple[int, str]], unit: str) -> int:
    """Return the run before which a unit's weights are gathered: the first of the unit before."""
    number = [name for _place, name in starts].index(unit)
    # The first unit has none before it: at its own start.
    return 0 if unit == ROOT else starts[max(0, number - 1)][0]


def accepted(graph: Graph, solver: str) -> None:
    """Raise NotAcceptedError if the graph is not sharded."""
    if not graph.tensors.spread:
        raise NotAcceptedError(
            f"{solver} takes graphs of sharded training; {graph.name} is not one: write one with `plan "
            "shard`, without --offload-shares"
        )
