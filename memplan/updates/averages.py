"""Averages of gradients over processes, in a traced program: an operation per bucket of gradients, after the
last that contributes to them.

    … B2 ─w2.grad.local─▶ w2/average ─w2.grad─▶ …
                              │ turn
    … B1 ─w1.grad.local─▶ w1/average ─w1.grad─▶ …

Of several batches for one update the sums are averaged, in the last one's program:

    … B1 ─w1.grad─▶ w1/add ─w1.sum─▶ w1/average ─w1.grad.average─▶ …

An average is of the queue comm: backward goes on meanwhile. So what reads it comes after the next average has
been issued (`after_next`): read at once, it would have the device wait for the network each time. Small
gradients are averaged together, since each average waits for the slowest rank and the network's latency.

All ranks must average the same gradients in the same order, or they wait for each other for ever, and each
has a separate schedule. So each average reads the `turn` that the one before has written, in the reversed
order of the parameters, as backward mostly makes them, and none is recomputed. The queue between the ranks
runs them in the order in which they are issued. Buckets depend on the parameters alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..devices.device.choice import device_of
from ..devices.measuring.measure import Measurement
from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..graphs.graph import Kind, Phase
from ..model.processes import Processes
from ..program.program import Call, Operation, Program, Ref, Storage, Value
from ..torch_support.torch_fakes import FakeTensorMode

Issued = Callable[[], None]
"""What computes averages that were issued."""

BUCKET_BYTES = 2**20
"""Bytes of gradients from which on they are averaged: 12 GB/s take three times the latency of a network."""

_SHARE = 16
"""Only this part of all gradients waits for others: in small models too few would be averaged early."""

_ALIGNMENT = 64
"""Bytes of which a gradient's offset in its bucket is a multiple, if the device's allocator has no larger."""


class Average:
    """The target of an operation that averages the gradients of a bucket, on the queue comm."""

    __name__ = "average"
    once = overlaps = True
    reads_when_issued = False

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def __call__(self, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Average gradients over the processes.

        tensors: `count` gradients, then the `turn` that the previous average has written, if there is one.
            Reading it keeps the averages in order.

        Returns the averages, several in one storage, and this operation's `turn`.
        """
        *made, run = self.issue(count, *tensors)
        run()
        made[-1].zero_()
        return tuple(made)

    def issue(self, count: int, *tensors: Tensor) -> tuple[Any, ...]:
        """Return the averages and the `turn`, all without values, and last what computes the averages.

        The queue between the ranks runs that, in the order in which the averages are issued.
        """
        gradients = tensors[:count]
        if count == 1:
            flat = torch.empty_like(gradients[0])
            averages = [flat]
        else:
            offsets, size = places_in_bucket(gradients)
            flat = torch.empty(size, dtype=gradients[0].dtype, device=gradients[0].device)
            averages = [
                flat.as_strided(each.shape, each.stride(), offset)
                for each, offset in zip(gradients, offsets, strict=True)
            ]
        turn = torch.empty((), device=flat.device)
        return *averages, turn, partial(self.processes.average_into, flat, averages, gradients)


def places_in_bucket(gradients: Sequence[Tensor]) -> tuple[list[int], int]:
    """Return where each gradient's average begins in the storage of all, and its size, in elements."""
    device = device_of(gradients[0].device)
    places, size, itemsize = list[int](), 0, gradients[0].dtype.itemsize
    alignment = max(_ALIGNMENT, device.block_bytes) // itemsize
    for each in gradients:
        places.append(size)
        size += -(-each.numel() // alignment) * alignment
    return places, size


def with_averages(program: Program, processes: Processes) -> Program:
    """Return the program whose gradients are those of all ranks."""
    writer = _Writer(program, Average(processes))
    # Later places replace earlier ones: the last operation that contributes stays.
    made = {x: place for place, one in enumerate(program.operations) for x in (*one.writes, *one.mutates)}
    later: dict[int, list[Operation]] = {}
    place = 0
    for names in _buckets(program):
        # Never before the previous average: all ranks must average in one order.
        place = max(place, *(made[program.values[program.gradients[name]].storage] for name in names))
        later.setdefault(place, []).append(writer.average(names))
    operations = [
        each for n, operation in enumerate(program.operations) for each in (operation, *later.get(n, ()))
    ]
    return replace(
        program,
        storages=writer.storages,
        values=writer.values,
        operations=operations,
        gradients={name: writer.averaged[name] for name in program.gradients},
    )


def _buckets(program: Program) -> list[list[str]]:
    """Return the names of the parameters whose gradients are averaged together, in the averages' order."""
    sizes = {name: _bytes(program.values[value]) for name, value in program.gradients.items()}
    enough = min(BUCKET_BYTES, sum(sizes.values()) // _SHARE)
    found, left = list[list[str]](), 0
    before: Value | None = None
    for name in reversed(list(program.gradients)):
        form = program.values[program.gradients[name]]
        # One collective is of one dtype on one device, and a bucket is dense.
        fits = before is not None and (form.dtype, form.device) == (before.dtype, before.device)
        if left <= 0 or not fits or not is_dense(form):
            found.append([])
            left = enough
        found[-1].append(name)
        left = left - sizes[name] if is_dense(form) else 0
        before = form
    return found


def _bytes(form: Value) -> int:
    return prod(form.shape) * form.dtype.itemsize


def is_dense(form: Value) -> bool:
    """Tell whether a value's elements fill their memory without gaps, each once."""
    return prod(form.shape) == 0 or form.end == form.offset * form.dtype.itemsize + _bytes(form)


def after_next(program: Program, place: int) -> int:
    """Return the place of the next average after the one at this place; the place itself if there is none.

    What reads an average comes after the next one has been issued.
    """
    if not averages(program.operations[place]):
        return place
    following = (n for n in range(place + 1, len(program.operations)) if averages(program.operations[n]))
    return next(following, place)


def check_summed(program: Program, names: Container[str]) -> None:
    """Check that every gradient is summed over batches. Raises InputError, one line, if one is not.

    names: of parameters whose gradients are summed. Others would be averaged batch by batch.
    """
    if left := [name for name in program.gradients if name not in names]:
        raise InputError(
            f"accumulate and DistributedDataParallel: {left[0]} has a gradient and is none of the "
            "optimizer's parameters: give it to the optimizer, or freeze it with requires_grad_(False)"
        )


def averages(operation: Operation) -> bool:
    return isinstance(operation.call.target, Average)


def averaged(program: Program) -> dict[str, list[int]]:
    """Return the values that each operation averages into, by its name, in their order."""
    found = filter(averages, program.operations)
    return {one.name: [x for x in one.call.outputs[:-1] if x is not None] for one in found}


def with_talks(measured: Sequence[Measurement], program: Program, processes: Processes) -> list[Measurement]:
    """Add the time of the other ranks to the averages, which were measured without them."""
    size = {
        name: program.storages[program.values[values[0]].storage].bytes
        for name, values in averaged(program).items()
    }
    return [
        one
        if operation.name not in size
        else one._replace(seconds=one.seconds + processes.seconds(size[operation.name]))
        for one, operation in zip(measured, program.operations, strict=True)
    ]


class _Writer:
    """Writer of the averages.

    averaged: the new gradients.
    turn: the value that the last average has written.
    """

    def __init__(self, program: Program, target: Average) -> None:
        self.device, self.gradients = program.device, program.gradients
        self.target = target
        self.values = list(program.values)
        self.storages = list(program.storages)
        self.averaged: dict[str, int] = {}
        self.turn: int | None = None
        for storage in {self.values[value].storage for value in program.gradients.values()}:
            local = self.storages[storage]
            if local.kind == Kind.OPTIMIZER_STATE:  # a sum
                continue
            self.storages[storage] = local._replace(name=f"{local.name}.local", kind=Kind.GRADIENT)

    def average(self, names: Sequence[str]) -> Operation:
        """Create the operation that averages the gradients of these parameters."""
        locals_ = [self.gradients[name] for name in names]
        forms = [self.values[value] for value in locals_]
        layer = self.storages[forms[0].storage].layer
        arguments = tuple(Ref(value) for value in (*locals_, self.turn) if value is not None)
        read = tuple(dict.fromkeys(self.values[one.value].storage for one in arguments))
        summed = self.storages[forms[0].storage].kind == Kind.OPTIMIZER_STATE
        name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        with FakeTensorMode():
            fakes = [
                torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device=each.device)
                for each in forms
            ]
            *made, turn, _run = self.target.issue(len(fakes), *fakes)
        storage = self._storage(
            f"{name}.grad.average" if summed else f"{name}.grad", Kind.PARAMETER_GRADIENT, layer, made[0]
        )
        outputs = [self._value(storage, each) for each in made]
        self.averaged |= dict(zip(names, outputs, strict=True))
        self.turn = self._value(self._storage(f"{name}.turn", Kind.GRADIENT, layer, turn), turn)
        call = Call(self.target, (len(names), *arguments), {}, (*outputs, self.turn), several=True)
        return Operation(
            name=f"{name}/average",
            phase=Phase.BACKWARD,
            layer=layer,
            call=call,
            reads=read,
            writes=(storage, self.values[self.turn].storage),
            mutates=(),
            random=False,
        )

    def _storage(self, name: str, kind: Kind, layer: str | None, made: Tensor) -> int:
        self.storages.append(Storage(name, size_bytes(made, self.device), kind, layer))
        return len(self.storages) - 1

    def _value(self, storage: int, made: Tensor) -> int:
        layout = (tuple(made.shape), tuple(made.stride()), int(made.storage_offset()))
        self.values.append(Value(storage, *layout, made.dtype, made.device))
        return len(self.values) - 1
