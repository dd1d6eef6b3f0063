"""Gradient accumulation: K micro-batches one after the other, their gradients summed, then one update.

    F1 F2 loss B2 B1 | F1@2 F2@2 loss@2 B2@2 B1@2      dw1: contributions of B1 and B1@2

Every micro-batch has its own inputs, activations and loss; weights, buffers and parameter gradients are
those of all. A parameter gradient so lives from the first micro-batch to its update, which `with_updates`,
applied afterwards, puts into the last one. Adding to a gradient that is there takes no time here (PyTorch
reads and writes it once more). Linear in K times the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph, Kind, Phase


def with_accumulation(graph: Graph, micro_batches: int) -> Graph:
    """The graph of one iteration over so many micro-batches of the graph's size; the first keeps its names.

    Only the last loss has the phase `loss`, of which a graph has one. The source's fingerprint goes: the
    program that it stands for has one batch. Raises InputError, one line.
    """
    if micro_batches < 1:
        raise InputError(f"{micro_batches} micro-batches: there must be at least one")
    if micro_batches == 1:
        return graph
    shared = _shared(graph)
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        draft.tensor(*graph.tensor(x))
    results = list(graph.results)
    tensors = list(range(len(graph.tensors)))
    _operations(draft, graph, tensors, "", last=False)
    for number in range(2, micro_batches + 1):
        tensors = [x if shared[x] else _copy(draft, graph, x, number) for x in range(len(graph.tensors))]
        results += [tensors[x] for x in graph.results if not shared[x]]
        _operations(draft, graph, tensors, f"@{number}", last=number == micro_batches)
    source = {key: value for key, value in graph.source.items() if key != "fingerprint"}
    return draft.graph(results, graph.machine, {**source, "micro_batches": micro_batches})


def _shared(graph: Graph) -> list[bool]:
    """Per tensor: one for all micro-batches. Raises InputError where a gradient is used before the last."""
    shared: list[bool] = graph.persistent.tolist()
    for x in graph.results:
        if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT:
            shared[x] = True
            if len(graph.consumers[x]) or len(graph.mutators[x]):
                raise InputError(
                    f"{graph.name}: {graph.tensors.name[x]} is read before all micro-batches have contributed"
                )
    for operation in range(len(graph.operations)):
        changed = (graph.tensors.kind[x] for x in graph.mutate_lists[operation])
        if any(kind in (Kind.PARAMETER, Kind.OPTIMIZER_STATE) for kind in changed):
            raise InputError(f"{graph.name} has updates: accumulate first, then add them")
    return shared


def _copy(draft: Draft, graph: Graph, x: int, number: int) -> int:
    name, size, kind, layer = graph.tensor(x)
    return draft.tensor(f"{name}@{number}", size, kind, layer)


def _operations(draft: Draft, graph: Graph, tensors: Sequence[int], suffix: str, *, last: bool) -> None:
    """One micro-batch, on its tensors."""

    def mapped(row: Sequence[int]) -> tuple[int, ...]:
        return tuple(tensors[x] for x in row)

    for index in range(len(graph.operations)):
        one = graph.operation(index)
        modes = tuple(
            replace(
                mode,
                writes=mapped(mode.writes),
                reads_host=mapped(mode.reads_host),
                writes_host=mapped(mode.writes_host),
            )
            for mode in one.modes
        )
        phase = one.phase if one.phase != Phase.LOSS or last else Phase.FORWARD
        recomputed = one._replace(
            name=one.name + suffix,
            phase=phase,
            reads=mapped(one.reads),
            writes=mapped(one.writes),
            mutates=mapped(one.mutates),
            modes=modes,
        )
        draft.operation(**recomputed._asdict())
