"""Calls on values that are in host memory: on the CPU concurrently with the compute queue, or from the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...devices.device.device import Device
from ...devices.measuring.synthetic_inputs import substitute
from ...devices.storage.copies import raw, value
from ...devices.storage.host_buffers import Host, HostBuffer
from ...devices.storage.shortage import ShortageError
from ...graphs.errors import MemplanError
from ...graphs.graph import Mode
from ...graphs.machine import Memory
from ...program.program import Call, Operation, Program, values_read
from ...torch_support.below_autograd import as_traced
from ...torch_support.out_of_memory import is_out_of_memory
from ...updates.early import settings_on_host

_CPU = torch.device("cpu")


class HostCall:
    """An operation's call, on the settings, the blocks of the storages on the host, then other values."""

    def __init__(self, program: Program, call: Call, on_host: Sequence[int]) -> None:
        self.storages = tuple(on_host)
        self.others = tuple(v for v in values_read(call) if program.values[v].storage not in self.storages)
        self._program, self._call = program, call

    def __call__(self, settings: Sequence[float], *given: Any) -> Any:
        blocks = dict(zip(self.storages, given[: len(self.storages)], strict=True))
        tensors = dict(zip(self.others, given[len(self.storages) :], strict=True))
        for read in values_read(self._call):
            self._need(read, blocks, tensors)
        return _made(self._call, tensors, settings)

    def _need(self, wanted: int, blocks: dict[int, HostBuffer], tensors: dict[int, Tensor]) -> None:
        if wanted in tensors:
            return
        form, view = self._program.values[wanted], self._program.views.get(wanted)
        if view is None:
            tensors[wanted] = value(blocks[form.storage].bytes, form)
            return
        for base in values_read(view):
            self._need(base, blocks, tensors)
        made = _made(view, tensors, ())
        results = made if view.several else (made,)
        tensors.update((out, one) for out, one in zip(view.outputs, results, strict=True) if out is not None)


class CpuOperation:
    """An operation on the CPU.

    workspace: bytes, counted while it runs.
    """

    def __init__(self, program: Program, operation: Operation, workspace: int) -> None:
        self.inputs = tuple(dict.fromkeys((*operation.reads, *operation.mutates)))
        self._call = HostCall(program, operation.call, self.inputs)
        self._outputs = operation.call.outputs
        self._several = operation.call.several
        self._storages = {out: program.values[out].storage for out in self._outputs if out is not None}
        self._mutates = operation.mutates
        self._workspace = workspace

    def __call__(
        self,
        host: Host,
        keep: Callable[[int, HostBuffer], None],
        settings: Sequence[float],
        inputs: Sequence[HostBuffer],
        results: dict[int, HostBuffer],
    ) -> None:
        """Run the operation on blocks in host memory.

        keep: called with each storage that is about to be changed, and its block.
        results: by storage, the blocks to fill.
        """
        blocks = dict(zip(self.inputs, inputs, strict=True))
        for storage in self._mutates:
            keep(storage, blocks[storage])
        host.count.take(self._workspace)
        try:
            with as_traced(_CPU):
                made = self._call(settings_on_host(settings), *inputs)
        except Exception as error:
            # OutOfMemoryError is of a GPU.
            if isinstance(error, torch.OutOfMemoryError) or not is_out_of_memory(error):
                raise
            line = f"the host has no memory for an update there: {error}"
            raise ShortageError.of(Memory.HOST, line) from error
        finally:
            host.count.give_back(self._workspace)
        for out, tensor in zip(self._outputs, made if self._several else (made,), strict=False):
            if out is not None and (block := results.get(self._storages[out])):
                block.hold(raw(tensor))


def check_mode(operation: Operation, mode: Mode, device: Device) -> None:
    """Raise MemplanError if PyTorch can't run the operation so."""
    fault = None
    if mode.on_host and operation.random:
        fault = "it draws random numbers, which are the device's"
    elif mode.on_host and _names_device((operation.call.arguments, *operation.call.keywords.values())):
        fault = "its call names the device"
    elif mode.reads_host and not device.reads_host:
        fault = (
            f"reading host memory from {device.torch.type} is not supported; solve the graph without its "
            "modes with reads_host"
        )
    elif mode.writes_host:
        fault = "PyTorch's kernels write no host memory; solve the graph without its modes with writes_host"
    if fault is not None:
        raise MemplanError(f"{operation.name} can't run in mode {mode.name} here: {fault}")


def _names_device(argument: Any) -> bool:
    if isinstance(argument, tuple | list):
        return any(map(_names_device, argument))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(argument, torch.device) and argument.type != "cpu"


def _made(call: Call, tensors: dict[int, Tensor], settings: Sequence[float]) -> Any:
    arguments = substitute(call.arguments, tensors, settings)
    return call.target(*arguments, **substitute(call.keywords, tensors, settings))
