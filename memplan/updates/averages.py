"""Averages of gradients over processes, in a traced program: one operation per gradient, after the last that
contributes to it.

    … B2 ─w2.grad.local─▶ w2/average ─w2.grad─▶ …
                              │ turn
    … B1 ─w1.grad.local─▶ w1/average ─w1.grad─▶ …

Of several batches for one update the sums are averaged, in the last one's program:

    … B1 ─w1.grad─▶ w1/add ─w1.sum─▶ w1/average ─w1.grad.average─▶ …

All ranks must average the same gradients in the same order, or they wait for each other for ever, and each
has a separate schedule. So each average reads the `turn` that the one before has written, in the reversed
order of the parameters, as backward mostly makes them, and none is recomputed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..devices.measuring.measure import Measurement
from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..graphs.graph import Kind, Phase
from ..model.processes import Processes
from ..program.program import Call, Operation, Program, Ref, Storage, Value
from ..torch_support.torch_fakes import FakeTensorMode


class Average:
    """The target of an average's operation."""

    __name__ = "average"
    once = True

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def __call__(self, gradient: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Average a gradient over the processes.

        before: the `turn` that the previous average has written. Reading it keeps the averages in order.

        Returns the average and this average's `turn`.
        """
        turn = torch.zeros((), device=gradient.device)
        return self.processes.average(gradient), turn


def with_averages(program: Program, processes: Processes) -> Program:
    """Return the program whose gradients are those of all ranks."""
    writer = _Writer(program, Average(processes))
    # Later places replace earlier ones: the last operation that contributes stays.
    made = {x: place for place, one in enumerate(program.operations) for x in (*one.writes, *one.mutates)}
    later: dict[int, list[Operation]] = {}
    place = 0
    for name, local in reversed(list(program.gradients.items())):
        # Never before the previous average: all ranks must average in one order.
        place = max(place, made[program.values[local].storage])
        later.setdefault(place, []).append(writer.average(name, local))
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


def averaged(program: Program) -> dict[str, int]:
    """Return the value that each average makes, by the operation's name, in their order."""
    return {one.name: one.call.outputs[0] or 0 for one in filter(averages, program.operations)}


def with_talks(measured: Sequence[Measurement], program: Program, processes: Processes) -> list[Measurement]:
    """Add the time of the other ranks to the averages, which were measured without them."""
    size = {
        name: program.storages[program.values[value].storage].bytes
        for name, value in averaged(program).items()
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
        self.device = program.device
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

    def average(self, name: str, local: int) -> Operation:
        form = self.values[local]
        layer = self.storages[form.storage].layer
        arguments = tuple(Ref(value) for value in (local, self.turn) if value is not None)
        read = tuple(dict.fromkeys(self.values[one.value].storage for one in arguments))
        summed = self.storages[form.storage].kind == Kind.OPTIMIZER_STATE
        made = f"{name}.grad.average" if summed else f"{name}.grad"
        self.averaged[name] = self._made(made, Kind.PARAMETER_GRADIENT, layer, form)
        number = form._replace(shape=(), strides=(), dtype=torch.float32)
        self.turn = self._made(f"{name}.turn", Kind.GRADIENT, layer, number)
        outputs = (self.averaged[name], self.turn)
        call = Call(self.target, arguments, {}, outputs, several=True)
        written = tuple(self.values[value].storage for value in outputs)
        return Operation(
            name=f"{name}/average",
            phase=Phase.BACKWARD,
            layer=layer,
            call=call,
            reads=read,
            writes=written,
            mutates=(),
            random=False,
        )

    def _made(self, name: str, kind: Kind, layer: str | None, form: Value) -> int:
        with FakeTensorMode():
            like = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
        self.storages.append(Storage(name, size_bytes(like, self.device), kind, layer))
        self.values.append(form._replace(storage=len(self.storages) - 1, offset=0))
        return len(self.values) - 1
