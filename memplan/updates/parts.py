"""The programs of an update over several batches, from one trace.

    update     … B2 ─dw2─▶ w2/update …                         the last batch: adds, then updates
               … B2 ─dw2─▶ w2/add ─▶ norm ─▶ clip ─▶ w2/update …        clipped, or after backward
    adding     … B2 ─dw2─▶ w2/add …                            each batch before it
    updating   w2/update …                                     what is left at an epoch's end: no batch

Over processes the sums are averaged where weights are updated, and nowhere else:

    update     … B2 ─dw2─▶ w2/add ─▶ w2/average ─▶ norm ─▶ clip ─▶ w2/update …
    updating                         w2/average ─▶ norm ─▶ clip ─▶ w2/update …

The first is the one that is traced and planned (updates.py). The others are parts of it: storages and values
have the same indices, and whatever a part does not use is nowhere in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from ..program.fingerprint import fingerprint
from ..program.outputs import NOTHING
from ..program.program import Call, Operation, Program
from .averages import averages
from .buckets import pack
from .clipping import clip, clip_stacked, norm
from .norm_sums import NormSum, stack
from .rules import RULES
from .sums import FIRST, add, on_sum
from .updates import updates_weights


class Part(NamedTuple):
    """A program made of some operations of another.

    places: indices of its operations in the whole.
    """

    program: Program
    places: Sequence[int]


def adding(program: Program) -> Part:
    """Return the program of a batch that is not the last of its update."""
    return _part(program, replace(program, norm=None), _adding)


def updating(program: Program) -> Part:
    """Return the program of an update with the sums as they are."""
    part = replace(
        program,
        inputs={},
        loss=None,
        outputs={},
        output=NOTHING,
        gradients={},
        host_part=None,
        used=None,  # an update has no batch, whose values these would compare
        reads=None,
    )
    return _part(program, part, _updating)


def _part(whole: Program, part: Program, own: Callable[[Operation, bool], Operation | None]) -> Part:
    """own: from an operation, and whether it is of the update, what the part has in its place."""
    averaged = {x for one in whole.operations if averages(one) for x in one.writes}
    found = [(place, own(one, _ends(one, averaged))) for place, one in enumerate(whole.operations)]
    operations = [operation for _place, operation in found if operation is not None]
    part = replace(part, operations=operations)
    places = [place for place, operation in found if operation is not None]
    return Part(replace(part, fingerprint=fingerprint(part)), places)


def _adding(operation: Operation, ends: bool) -> Operation | None:
    call = operation.call
    if call.target is on_sum:
        _weight, gradient, *_states, total, _lr, _step = call.arguments
        name = operation.name.replace("/update", "/add")
        only = Call(add, (total, gradient, FIRST), {}, (), several=False)
        # The sum is the last of what it changes: `with_sum` appends it to the states.
        return operation._replace(name=name, call=only, mutates=operation.mutates[-1:])
    return None if ends else operation


def _updating(operation: Operation, ends: bool) -> Operation | None:
    call = operation.call
    if call.target is on_sum:
        weight, _gradient, *states, total, lr, step = call.arguments
        keywords = {name: value for name, value in call.keywords.items() if name != "on"}
        # Now the sum is read where the gradient was, and not changed.
        only = Call(
            RULES[call.keywords["on"]], (weight, total, *states, lr, step), keywords, (), several=False
        )
        return operation._replace(call=only, reads=operation.mutates[-1:], mutates=operation.mutates[:-1])
    return operation if ends else None


def _ends(operation: Operation, averaged: AbstractSet[int]) -> bool:
    """Tell whether the operation is of the update, not of a batch. averaged: the storages of averages."""
    target = operation.call.target
    clips = target in (norm, clip, stack, clip_stacked) or isinstance(target, NormSum)
    packs = target is pack and not averaged.isdisjoint(operation.reads)
    return averages(operation) or packs or clips or updates_weights(operation)
