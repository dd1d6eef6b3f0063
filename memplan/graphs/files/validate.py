"""Checks of a graph beyond the types of its fields: an order that eager PyTorch could run."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Kind, Phase

MOST_SECONDS = 1e18
"""All operations together; the universe is half as old."""

MOST_BYTES = 2**61
"""All tensors and the largest workspace together, so that no sum of sizes leaves 64 bits."""


def validate(graph: Graph) -> None:
    """Validate a graph. Raises ValueError that names the operation (or result) and the fault."""
    _sums_are_finite(graph)
    _one_loss(graph)
    _nothing_writes_residents(graph)
    _reads_follow_writes(graph)
    _results_are_made(graph)
    _spread_tensors_are_of_updates(graph)
    _collectives_make_what_they_write(graph)
    for operation, modes in graph.operations.modes.items():
        inputs = set(graph.input_lists[operation])
        written = set(graph.operations.writes[operation].tolist())
        for mode in modes:
            if extra := set(mode.writes) - written:
                raise ValueError(
                    f"{_at(graph, operation)}: mode {mode.name!r} writes {_name(graph, extra)} too"
                )
            if extra := set(mode.reads_host) - inputs:
                raise ValueError(
                    f"{_at(graph, operation)}: mode {mode.name!r} reads {_name(graph, extra)} from the host, "
                    "which the operation does not read"
                )
            if extra := set(mode.reads_host) & set(graph.mutate_lists[operation]):
                raise ValueError(
                    f"{_at(graph, operation)}: mode {mode.name!r} changes {_name(graph, extra)} in place "
                    "and so can't read it from the host"
                )
            if extra := set(mode.writes_host) - set(mode.writes):
                raise ValueError(
                    f"{_at(graph, operation)}: mode {mode.name!r} writes {_name(graph, extra)} to the host, "
                    "which it does not write"
                )
            if mode.on_host and mode.writes_host:
                raise ValueError(
                    f"{_at(graph, operation)}: mode {mode.name!r} is on the host, where it writes all: "
                    "leave 'writes_host' out"
                )


def _sums_are_finite(graph: Graph) -> None:
    operations = graph.operations
    modes = [mode for modes in operations.modes.values() for mode in modes]
    seconds = [sum(operations.time.tolist()), *(mode.time for mode in modes)]
    if max(seconds) > MOST_SECONDS:
        raise ValueError(f"the operations take more than {MOST_SECONDS:g} s")
    if max([sum(operations.launch.tolist()), *(mode.launch for mode in modes)]) > MOST_SECONDS:
        raise ValueError(f"to launch the operations takes more than {MOST_SECONDS:g} s")
    workspaces = [operations.workspace.max(initial=0), *(mode.workspace for mode in modes)]
    # In float64: a sum of int64 could overflow and look small.
    if graph.tensors.bytes.sum(dtype=np.float64) + float(max(workspaces)) > MOST_BYTES:
        raise ValueError("the tensors have more bytes than any machine: more than 2 EiB")


def _one_loss(graph: Graph) -> None:
    losses = (graph.operations.phase == Phase.LOSS).nonzero()[0]
    if len(losses) > 1:
        raise ValueError(f"{_at(graph, int(losses[1]))}: a second loss operation")


def _nothing_writes_residents(graph: Graph) -> None:
    writes = graph.operations.writes
    bad = graph.resident[writes.columns].nonzero()[0]
    if len(bad):
        tensor = int(writes.columns[bad[0]])
        raise ValueError(
            f"{_at(graph, int(writes.rows()[bad[0]]))}: writes {graph.tensors.name[tensor]}, of kind "
            f"{graph.tensor(tensor).kind.word} and so there from the start: list it in 'mutates'"
        )


def _reads_follow_writes(graph: Graph) -> None:
    """Check that every contribution to a tensor comes before its first reader."""
    operations = graph.operations
    written = np.full(len(graph.tensors), -1)
    np.maximum.at(written, operations.writes.columns, operations.writes.rows())
    # Reads must come after the last contribution; -1: there from the start; past the end: never written.
    last_write = np.where(graph.resident | (written >= 0), written, len(operations))
    for reads, verb in ((operations.reads, "reads"), (operations.mutates, "changes")):
        rows = reads.rows()
        bad = (last_write[reads.columns] >= rows).nonzero()[0]
        if len(bad):
            tensor = graph.tensors.name[int(reads.columns[bad[0]])]
            place = _at(graph, int(rows[bad[0]]))
            raise ValueError(f"{place}: {verb} {tensor} before it could be written")


def _results_are_made(graph: Graph) -> None:
    # Resident tensors are there without a producer.
    made = graph.resident | (graph.producers.counts() > 0)
    for tensor in graph.results:
        if not made[tensor]:
            raise ValueError(f"results: {graph.tensors.name[tensor]} is written by no operation")


SPREAD_KINDS = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.PARAMETER_GRADIENT)
"""Kinds of tensors that may be spread over ranks."""


def _spread_tensors_are_of_updates(graph: Graph) -> None:
    """Check that only updates change spread tensors, and that none of these is ever in host memory."""
    spread, operations = graph.tensors.spread, graph.operations
    for x in sorted(spread):
        if graph.tensor(x).kind not in SPREAD_KINDS:
            kinds = ", ".join(kind.word for kind in SPREAD_KINDS)
            name, kind = graph.tensors.name[x], graph.tensor(x).kind.word
            raise ValueError(f"tensors[{x}] ({name}): spread, but of kind {kind}: only {kinds} can be")
        for o in graph.mutators[x].tolist():
            if operations.phase[o] != Phase.UPDATE:
                raise ValueError(
                    f"{_at(graph, o)}: changes {graph.tensors.name[x]}, which is spread: only an operation "
                    "of phase update can"
                )
        for o in graph.producers[x].tolist():
            if operations.phase[o] == Phase.UPDATE:
                raise ValueError(
                    f"{_at(graph, o)}: an update writes {graph.tensors.name[x]}, which is spread: list it in "
                    "'mutates'"
                )
    for o, modes in operations.modes.items() if spread else ():
        touched = {*graph.input_lists[o], *operations.writes[o].tolist()} & spread
        for mode in modes:
            if extra := touched if mode.on_host else touched & {*mode.reads_host, *mode.writes_host}:
                raise ValueError(
                    f"{_at(graph, o)}: mode {mode.name!r} has {_name(graph, extra)} in host memory, "
                    "but it is spread over the ranks"
                )


def _collectives_make_what_they_write(graph: Graph) -> None:
    """Check that operations of the queue comm make tensors of their own, on the device, in one way."""
    operations, producers = graph.operations, graph.producers.counts()
    for o in sorted(operations.comm):
        place = f"{_at(graph, o)}: queue comm, but it"
        if graph.tensors.spread:
            raise ValueError(
                f"{_at(graph, o)}: queue comm, and tensors are spread over ranks: their gathers and scatters "
                "have that queue; give the operation the queue compute"
            )
        if len(operations.mutates[o]):
            raise ValueError(f"{place} changes {_name(graph, set(graph.mutate_lists[o]))} in place")
        if o in operations.modes:
            raise ValueError(f"{place} has modes")
        if operations.random[o]:
            raise ValueError(f"{place} draws random numbers")
        if shared := {x for x in operations.writes[o].tolist() if producers[x] > 1}:
            raise ValueError(f"{place} writes {_name(graph, shared)} together with other operations")


def _at(graph: Graph, operation: int) -> str:
    return f"operations[{operation}] ({graph.operations.name[operation]})"


def _name(graph: Graph, tensors: set[int]) -> str:
    return graph.tensors.name[min(tensors)]
