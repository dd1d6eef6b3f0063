"""The two halves of an iteration that is part of a larger graph, in a traced program.

    trace     forward ─▶ handover ─▶ backward ─▶ buffers written back
    program   buffer.before = clone(buffer) ─▶ forward ─▶ buffers written back ─▶ handover ─▶ backward

When the caller gets the outputs, forward has done all that eager PyTorch's has: buffers have their new
values, random numbers are drawn. An operation that is recomputed after the handover must read the old values;
so what forward changes is copied first, and all but the change itself read the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..graphs.graph import Kind, Phase
from ..program.handover import HANDOVER
from ..program.program import Call, Operation, Program, Ref, Storage, Value
from ..torch_support.unsupported import TraceError


def with_handover(program: Program) -> Program:
    """Return the program with all that forward changes written before its handover; a program without one
    as it is.
    """
    if program.handover is None:
        return program
    program = _with_forward_first(program)
    place = _place(program.operations)
    changed = list(dict.fromkeys(x for one in program.operations[:place] for x in one.mutates))
    for storage in changed:
        program = _with_copy(program, storage)
    place = _place(program.operations)
    operations = list(program.operations)
    handover = operations[place]
    operations[place] = handover._replace(
        phase=Phase.LOSS,
        # In any order of a schedule, outputs and changes come before it, and, as if it drew too, all draws.
        reads=tuple(dict.fromkeys((*handover.reads, *changed))),
        random=any(one.random for one in operations[:place]),
    )
    return replace(program, operations=operations)


def _place(operations: Sequence[Operation]) -> int:
    return next(n for n, one in enumerate(operations) if one.call.target is HANDOVER)


def _with_forward_first(program: Program) -> Program:
    """Move changes in place that do not follow from cotangents before the handover, with what they need."""
    operations = program.operations
    place = _place(operations)
    follows = set(operations[place].writes)
    first: list[int] = []
    for number in range(place + 1, len(operations)):
        one = operations[number]
        if not follows.isdisjoint(one.reads):
            follows.update(one.writes)
        elif one.mutates:
            first.append(number)
    needed = {x for number in first for x in operations[number].reads}
    early = set(first)
    for number in range(len(operations) - 1, place, -1):
        if not needed.isdisjoint(operations[number].writes):
            early.add(number)
            needed.update(operations[number].reads)
    later = range(place + 1, len(operations))
    order = [*range(place), *sorted(early), place, *(number for number in later if number not in early)]
    forward = {number: operations[number]._replace(phase=Phase.FORWARD) for number in early}
    return replace(program, operations=[forward.get(number, operations[number]) for number in order])


def _with_copy(program: Program, storage: int) -> Program:
    """Let all but the changes of a storage read a copy of it, which is made before its first use.

    No copy is made for what computes nothing but changes (a count of batches): it is not recomputed.
    """
    kept = {x for one in program.operations if not one.mutates for x in one.reads} | {*program.results}
    users = [n for n, one in enumerate(program.operations) if storage in one.reads]
    if all(kept.isdisjoint(program.operations[n].writes) for n in users):
        return program
    residents = [value for value in program.residents if program.values[value].storage == storage]
    (resident,) = residents if len(residents) == 1 else (None,)
    form = None if resident is None else program.values[resident]
    name = program.storages[storage].name
    if resident is None or form is None or form.offset or not _is_dense(form):
        raise TraceError(
            f"forward changes {name} in place, which shares its memory or lies in it with gaps: make it a "
            "tensor with memory of its own, by clone()"
        )
    made, there = len(program.storages), program.storages[storage]
    values = list(program.values)
    new: dict[int, int] = {}
    for value, own in enumerate(program.values):
        if own.storage == storage:
            new[value] = len(values)
            values.append(own._replace(storage=made))
    views = dict(program.views)
    views |= {new[v]: _renamed(call, new) for v, call in program.views.items() if v in new}
    copy = Operation(
        name=f"{name}/before",
        phase=Phase.FORWARD,
        layer=there.layer,
        call=Call(torch.ops.aten.clone.default, (Ref(resident),), {}, (new[resident],), several=False),
        reads=(storage,),
        writes=(made,),
        mutates=(),
        random=False,
    )
    operations = [_reading(one, storage, made, new) for one in program.operations]
    # Before the first use, hence before the change.
    operations.insert(users[0], copy)
    storages = [*program.storages, Storage(f"{name}.before", there.bytes, Kind.ACTIVATION, there.layer)]
    return replace(program, storages=storages, values=values, views=views, operations=operations)


def _reading(operation: Operation, storage: int, made: int, new: Mapping[int, int]) -> Operation:
    """Return the operation with the storage `made` in place of `storage` among what it reads."""
    if storage not in operation.reads:
        return operation
    reads = tuple(made if x == storage else x for x in operation.reads)
    return operation._replace(reads=reads, call=_renamed(operation.call, new))


def _renamed(call: Call, new: Mapping[int, int]) -> Call:
    """Return the call with other values for some of those that it reads and makes."""
    arguments, keywords = (_replaced(part, new) for part in (call.arguments, call.keywords))
    outputs = tuple(value if value is None else new.get(value, value) for value in call.outputs)
    return replace(call, arguments=arguments, keywords=keywords, outputs=outputs)


def _replaced(argument: Any, new: Mapping[int, int]) -> Any:
    if isinstance(argument, Ref):
        return Ref(new.get(argument.value, argument.value))
    if isinstance(argument, Mapping):
        return {name: _replaced(part, new) for name, part in argument.items()}  # pyright: ignore
    if isinstance(argument, tuple | list):
        return type(argument)(_replaced(part, new) for part in argument)  # pyright: ignore
    return argument


def _is_dense(form: Value) -> bool:
    """Tell whether the elements fill a block of memory without gaps, each once."""
    expected = 1
    both = zip(form.strides, form.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in both if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
