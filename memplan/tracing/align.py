"""A program in the order of the graph that was made of another trace of the same model.

The operations have their names from what they compute (program/canonical.py), so a graph of the same
fingerprint has the same, perhaps in another order: that of the trace it was made from. What a graph says of
them besides is compared, since a schedule is found by it: one that was changed by hand is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..devices.device.device import StreamDevice
from ..graphs.errors import MismatchError
from ..graphs.graph import Graph, Kind
from ..program.program import Operation, Program


def aligned(program: Program, graph: Graph, *, same_bytes: bool = True) -> Program:
    """Return the program with its storages and operations under the graph's indices.

    same_bytes: whether the graph must have this program's bytes. That of several ranks has the most that any
        of them needs.

    Raises MismatchError if the graph has other operations or tensors, or other bytes for them.
    """
    storages = _places([one.name for one in program.storages], graph.tensors.name, "tensor")
    operations = _places([one.name for one in program.operations], graph.operations.name, "operation")
    index = {before: after for after, before in enumerate(storages)}

    # Draws must keep the program's order: each advances the one generator.
    drawn = [operation.name for operation in program.operations if operation.random]

    def moved(operation: Operation) -> Operation:
        reads, writes, mutates = (
            tuple(index[storage] for storage in group)
            for group in (operation.reads, operation.writes, operation.mutates)
        )
        return operation._replace(reads=reads, writes=writes, mutates=mutates)

    program = replace(
        program,
        storages=[program.storages[before] for before in storages],
        values=[value._replace(storage=index[value.storage]) for value in program.values],
        operations=[moved(program.operations[before]) for before in operations],
    )
    _check_operations(program, graph, drawn)
    if same_bytes:
        _check_bytes(program, graph)
    return program


def _places(own: Sequence[str], theirs: Sequence[str], what: str) -> list[int]:
    """Return, per index in the graph, the index in the program."""
    index, there = {name: place for place, name in enumerate(own)}, set(theirs)
    if missing := [name for name in own if name not in there]:
        raise _changed(f"it lacks the {what} {missing[0]}")
    if extra := [name for name in theirs if name not in index]:
        raise _changed(f"the model has no {what} {extra[0]}")
    return [index[name] for name in theirs]


def _check_operations(program: Program, graph: Graph, drawn: Sequence[str]) -> None:
    for number, operation in enumerate(program.operations):
        there = graph.operation(number)
        for group in ("reads", "writes", "mutates"):
            if set(getattr(operation, group)) != set(getattr(there, group)):
                raise _changed(f"{operation.name} {group} other tensors in it than in the model")
        if there.phase != operation.phase or there.random != operation.random:
            raise _changed(f"{operation.name} is another kind of operation in it")
        # The reverse is allowed: a graph may forbid recomputation that would be right.
        if there.recompute and operation.once:
            raise _changed(f"{operation.name} can't be recomputed")
    draws = [operation.name for operation in program.operations if operation.random]
    if draws != drawn:
        raise _changed("its operations draw their random numbers in another order")
    if set(graph.results) != set(program.results):
        raise _changed("it has other results")


def _check_bytes(program: Program, graph: Graph) -> None:
    """Check the sizes: kernels may return more than the trace knows of; what is there before is known to
    the byte.
    """
    for number, storage in enumerate(program.storages):
        size, traced = int(graph.tensors.bytes[number]), storage.bytes
        in_blocks = -(-traced // StreamDevice.block_bytes) * StreamDevice.block_bytes
        exact = storage.kind in (Kind.INPUT, Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
        # A graph measured on CUDA has whole blocks of its allocator.
        if size < traced or (exact and size not in (traced, in_blocks)):
            raise _changed(f"{storage.name} takes {size} B in it, {traced} B in the model")


def _changed(how: str) -> MismatchError:
    return MismatchError(f"the graph was changed since it was profiled: {how}")
