"""Sums of a weight's gradients, made in the memory of the first of them.

A weight that forward uses several times (tied embeddings, a layer that runs twice) gets a gradient from each
use. Autograd adds them up out of place if the first is a view, as that of a matrix product is, and in a trace
always: then three tensors of the weight's size are live at once, at the end of GPT-2 its embedding three
times. In place it is two, and the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import torch

from ..graphs.graph import Phase
from ..program.program import Operation, Program, Ref
from ..program.renumbered import with_operations

aten: Any = torch.ops.aten


def with_sums_in_place(program: Program) -> Program:
    """Return the program, which has no updates yet, with additions to gradients of weights in place.

    An addition stays as it is if its first summand is used afterwards or is not exactly as large as the sum.
    """
    last_use, producer = dict[int, Operation](), dict[int, Operation]()
    for operation in program.operations:
        last_use.update(dict.fromkeys((*operation.reads, *operation.mutates), operation))
        producer.update(dict.fromkeys(operation.writes, operation))
    results = [program.values[value].storage for value in program.returned]
    gradients = (program.values[value].storage for value in program.gradients.values())
    values = Counter(value.storage for value in program.values)  # of a sum that has a view it is kept
    sums = {x for x in gradients if results.count(x) == 1 and values[x] == 1}
    storages, operations = list(program.storages), list(program.operations)
    instead = dict[int, int]()
    # From the last one, so that a sum which is a summand itself is known to become a gradient.
    for place in reversed(range(len(operations))):
        operation = operations[place]
        if (pair := _summand_and_sum(program, operation, sums)) is None:
            continue
        first, total = (program.values[value].storage for value in pair)
        own = first in producer and producer[first].phase == Phase.BACKWARD and first not in program.results
        if own and last_use[first] is operation and storages[first].bytes == storages[total].bytes:
            if values[first] == 1:
                sums.add(first)
            storages[first] = storages[total]
            instead[pair[1]] = pair[0]
            operations[place] = operation._replace(
                call=replace(operation.call, target=aten.add_.Tensor, outputs=(None,)),
                reads=tuple(x for x in operation.reads if x != first),
                writes=(),
                mutates=(first,),
            )
    if not instead:
        return program
    return with_operations(replace(program, storages=storages), operations, instead)


def _summand_and_sum(
    program: Program, operation: Operation, sums: AbstractSet[int]
) -> tuple[int, int] | None:
    """Return the first summand and the sum of an addition of two tensors, None of any other operation.

    sums: the storages in which sums count. The summand must have the sum's form.
    """
    call = operation.call
    if call.target is not aten.add.Tensor or call.keywords or sums.isdisjoint(operation.writes):
        return None
    first, second = call.arguments
    (made,) = call.outputs
    if not (isinstance(first, Ref) and isinstance(second, Ref)) or made is None:
        return None
    one, other, total = (program.values[value] for value in (first.value, second.value, made))
    same_form = one._replace(storage=total.storage) == total and other.dtype == total.dtype
    return (first.value, made) if same_form and one.storage != other.storage else None
