"""Row blocks: the update of a large weight in several operations, each of a block of its rows.

    … ─w.grad─▶ w/update                             needs w, w.grad and w.exp_avg, w.exp_avg_sq at once
    … ─w.grad─▶ w/update[0:4096] ─▶ w/update[4096:8192] …      needs w, w.grad and w.exp_avg[0:4096], …

Each block of a state is a tensor of the graph, which is offloaded and prefetched by itself: its copies
overlap with the updates of other blocks. So the states of a weight need not be on the device together, and
some of their rows may stay there. Solvers, simulator and bounds see ordinary tensors. The optimizer's tensors
stay whole: while a step moves blocks of one, it has these (runtime/run/blocked_ownership.py).

The bits are those of the whole weight: only rules that update each element by itself are taken, and a block
begins where no kernel of PyTorch would change from vectors to single elements. What still rounds otherwise
on this machine is found by a trial and refused (bits_in_blocks.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import NamedTuple

import torch

from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..graphs.graph import Kind
from ..program.names import Names
from ..program.program import Call, Operation, Program, Ref, Storage, Value, refs
from ..program.state_blocks import block_name
from ..torch_support.torch_fakes import FakeTensorMode
from .bits_in_blocks import ALIGNMENT, BitsInBlocks
from .catalogue import OPTIMIZERS
from .rules import in_rows, innermost, of_whole_weight, with_rule
from .updates import updates_weights


def with_row_blocks(program: Program, size: int) -> Program:
    """Return the program that updates large weights by blocks of rows.

    size: the most bytes of a weight in a block; a weight of no more bytes is updated at once.

    Raises InputError if no weight can be updated so, or if the bits would not be those of the whole weight.
    """
    found = list(_large_updates(program, size))
    if not found:
        _refuse(program, size)
    writer, bits = _Writer(program), BitsInBlocks(program)
    for each in found:
        bits.check(each.operation)
        writer.add(each)
    return writer.program()


class _LargeUpdate(NamedTuple):
    """The update of a large weight.

    place: among the operations.
    blocks: rows, in order.
    """

    place: int
    operation: Operation
    blocks: Sequence[slice]


def _large_updates(program: Program, size: int) -> Iterator[_LargeUpdate]:
    """Yield the updates that are made by blocks of at most so many bytes of the weight."""
    residents = Counter(program.values[value].storage for value in program.residents)
    used = Counter(x for one in program.operations for x in {*one.reads, *one.mutates})
    for place, operation in enumerate(program.operations):
        if not updates_weights(operation) or not _is_by_element(operation.call):
            continue
        weight, gradient, *states = (program.values[value] for value in refs(operation.call.arguments))
        forms = (weight, gradient, *states)
        if not all(each.shape == weight.shape and _is_contiguous(each) for each in forms):
            continue
        # A state that something else uses, as a sum of which the norm is taken, is needed whole.
        if all(residents[x.storage] == used[x.storage] == 1 and x.offset == 0 for x in states):
            blocks = _blocks(weight, size)
            if len(blocks) > 1:
                yield _LargeUpdate(place, operation, blocks)


def _is_by_element(call: Call) -> bool:
    if of_whole_weight(call) is None:
        return False
    function = innermost(call.target, call.keywords)
    return all(one.by_element for one in OPTIMIZERS.values() if function in one.functions)


def _is_contiguous(form: Value) -> bool:
    expected = 1
    for size, stride in zip(reversed(form.shape), reversed(form.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _blocks(weight: Value, size: int) -> list[slice]:
    """Return blocks of rows of nearly equal size; one if the weight is not larger, none if no block is as
    small.
    """
    if not weight.shape or 0 in weight.shape:
        return []
    rows, bytes_ = weight.shape[0], _row_bytes(weight)
    unit = _unit(weight)
    most = size // (bytes_ * unit) * unit
    if rows * bytes_ <= size or not most:
        return []
    each = -(-rows // -(-rows // most))
    each = -(-each // unit) * unit
    return [slice(start, min(start + each, rows)) for start in range(0, rows, each)]


def _unit(weight: Value) -> int:
    """Return the rows of which a block has a multiple."""
    return ALIGNMENT // gcd(ALIGNMENT, prod(weight.shape[1:]))


def _row_bytes(weight: Value) -> int:
    return prod(weight.shape[1:]) * weight.dtype.itemsize


def _refuse(program: Program, size: int) -> None:
    """Raise InputError, with the reason why no weight is updated by blocks of this size."""
    updates = [one for one in program.operations if updates_weights(one)]
    weights = [program.values[next(refs(one.call.arguments))] for one in updates]
    large = [
        (one.call, weight)
        for one, weight in zip(updates, weights, strict=True)
        if weight.shape and weight.shape[0] * _row_bytes(weight) > size
    ]
    if not large:
        raise InputError(f"block_size={size:,}: no weight is larger: give a smaller size, or leave it out")
    whole = [call for call, _weight in large if not _is_by_element(call)]
    if len(whole) == len(large):
        function = innermost(whole[0].target, whole[0].keywords)
        title = next(one.title for one in OPTIMIZERS.values() if function in one.functions)
        raise InputError(
            f"block_size={size:,}: {title} updates a weight as a whole: leave it out, or give an optimizer "
            "that updates each element by itself, like AdamW"
        )
    smallest = min(_unit(weight) * _row_bytes(weight) for _call, weight in large)
    if smallest > size:
        raise InputError(
            f"block_size={size:,}: the smallest block of a weight here has {smallest:,} bytes: give as many, "
            "or leave it out"
        )
    raise InputError(
        f"block_size={size:,}: no larger weight is contiguous with its gradient and states, or of at least "
        "two blocks: give a smaller size, or leave it out"
    )


class _Writer:
    """Writer of the program with row blocks. The first block of a state has the state's storage and value."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._storages, self._values = list(program.storages), list(program.values)
        self._keys = {value: key for key, value in program.states.items()}
        self._blocks: dict[int, dict[str, int]] = {}
        self._updates: dict[int, list[Operation]] = {}
        self._names, self._operations = Names(), Names()
        for storage in program.storages:
            self._names.unique(storage.name)
        for operation in program.operations:
            self._operations.unique(operation.name)

    def add(self, update: _LargeUpdate) -> None:
        operation, call = update.operation, update.operation.call
        weight, gradient, *states = refs(call.arguments)
        blocks = [self._state(value, update.blocks) for value in states]
        for rows, *own in zip(update.blocks, *blocks, strict=True):
            arguments = (*map(Ref, (weight, gradient, *own)), *call.arguments[-2:])
            made = with_rule(call, in_rows, start=rows.start, stop=rows.stop)
            changed = (self._values[value].storage for value in (weight, *own))
            one = operation._replace(
                name=self._operations.unique(block_name(operation.name, rows)),
                call=replace(made, arguments=arguments),
                mutates=tuple(dict.fromkeys(changed)),
            )
            self._updates.setdefault(update.place, []).append(one)

    def _state(self, value: int, blocks: Sequence[slice]) -> list[int]:
        """Add a state's blocks, and return their values."""
        whole, found = self._program.values[value], list[int]()
        storage = self._program.storages[whole.storage]
        state = self._keys[value][1]
        for rows in blocks:
            form = whole._replace(shape=(rows.stop - rows.start, *whole.shape[1:]))
            name = self._names.unique(block_name(storage.name, rows))
            with FakeTensorMode():
                fake = torch.empty(form.shape, dtype=form.dtype, device=form.device)
                size = size_bytes(fake, self._program.device)
            new = Storage(name, size, Kind.OPTIMIZER_STATE, storage.layer)
            if not found:
                self._storages[whole.storage], self._values[value] = new, form
                found.append(value)
            else:
                self._storages.append(new)
                self._values.append(form._replace(storage=len(self._storages) - 1))
                found.append(len(self._values) - 1)
        names = (block_name(state, rows) for rows in blocks)
        self._blocks[value] = dict(zip(names, found, strict=True))
        return found

    def program(self) -> Program:
        operations = [
            each
            for place, one in enumerate(self._program.operations)
            for each in self._updates.get(place, [one])
        ]
        states = {
            (parameter, name): block
            for (parameter, state), value in self._program.states.items()
            for name, block in self._blocks.get(value, {state: value}).items()
        }
        return replace(
            self._program,
            storages=self._storages,
            values=self._values,
            operations=operations,
            states=states,
        )
