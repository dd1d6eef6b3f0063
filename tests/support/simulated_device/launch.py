"""An operation on the simulated device: it is launched, and runs late.

Its results have memory at once, the content comes when its stream gets there. It fails where an input changes
while it is read, or where a result has another form than the trace told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from memplan.devices.calls.fused import dropout_mask
from memplan.devices.storage.copies import raw, value
from memplan.program.program import Operation, Program, Target, Value, refs
from memplan.torch_support.below_autograd import as_traced
from torch import Tensor

from .threads import DeviceFaultError, ThreadStream

CPU = torch.device("cpu")


class Launcher(Protocol):
    """What an operation asks of the device (device.py)."""

    def room(self, size: int) -> Tensor: ...

    def alias(self, tensor: Tensor) -> Tensor: ...

    def aliases(self, argument: Any, known: list[Tensor]) -> Any: ...

    def launch(self, work: Callable[[], None], operation: Operation | None = None) -> ThreadStream: ...


class Launch:
    """An operation's target, queued."""

    def __init__(self, device: Launcher, program: Program, operation: Operation, workspace: int) -> None:
        call, values = operation.call, program.values
        self._operation = operation
        self._device, self._name, self._workspace = device, operation.name, workspace
        self._target, self._several, self._random = call.target, call.several, operation.random
        self._sizes = [(x, program.storages[x].bytes) for x in operation.writes]
        forms = [None if out is None else values[out] for out in call.outputs]
        self._forms = [form if form and form.storage in operation.writes else None for form in forms]
        read = (*refs(call.arguments), *refs(call.keywords))
        self._stays = [values[v].storage not in operation.mutates for v in read]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        device = self._device
        inputs: list[Tensor] = []
        given: list[Any] = device.aliases(list(arguments), inputs)
        named: dict[str, Any] = device.aliases(keywords, inputs)
        rooms = {x: device.room(size) for x, size in self._sizes}
        workspace = device.room(self._workspace)
        targets = {x: device.alias(room) for x, room in rooms.items()}
        draws_now = self._random and _reads_no_content(self._target, inputs)
        drawn = self._made(given, named) if draws_now else None

        def run() -> None:
            before = [_bits(tensor) for tensor in inputs]
            made = self._made(given, named) if drawn is None else drawn
            for form, result in zip(self._forms, made, strict=False):
                if form is not None:
                    self._fill(targets[form.storage], form, result)
            for tensor, bits, stays in zip(inputs, before, self._stays, strict=True):
                if stays and not np.array_equal(_bits(tensor), bits):
                    raise DeviceFaultError(f"{self._name}: an input changed while it was read")

        stream = device.launch(run, self._operation)
        if getattr(self._target, "waits", False) or (self._random and not draws_now):
            stream.synchronize()
        results = [None if form is None else value(rooms[form.storage], form) for form in self._forms]
        del workspace, rooms
        return results if self._several else (results[0] if results else None)

    def _made(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        with as_traced(CPU):
            made = self._target(*given, **named)
        return made if self._several else (made,)

    def _fill(self, room: Tensor, form: Value, made: Tensor) -> None:
        found = (tuple(made.shape), tuple(made.stride()), made.storage_offset(), made.dtype)
        if found != (form.shape, form.strides, form.offset, form.dtype):
            raise DeviceFaultError(f"{self._name}: a result is {found}, not as the trace told")
        room[: form.end].copy_(raw(made)[: form.end])


def _reads_no_content(target: Target, inputs: Sequence[Tensor]) -> bool:
    """Whether it draws from the generator alone: then it does so when it is launched."""
    name = str(getattr(target, "overloadpacket", target))
    return not inputs or target is dropout_mask or name.endswith("_like")


def _bits(tensor: Tensor) -> Any:
    """The content, byte by byte, in memory of its own."""
    return np.frombuffer(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), np.uint8)
