"""Iterations captured as CUDA graphs: launched as one, without Python between their kernels.

    batch ──copy──▶ static inputs ─┐
    step count, learning rates ──▶ 0-dimensional tensors ─┤ replay ─▶ results, copied out
    weights, states, buffers: read and changed where they are ─┘

A graph holds addresses and numbers. So a capture is for the addresses of all tensors that it reads, but for
the inputs, and for all settings that are not in a tensor; others get a capture of their own, the second time
that they occur: settings that differ each time never do, and run as without graphs.

All captures of a step share one pool of memory, which lives between iterations too. It holds what an
iteration allocates: the planned peak less what is resident, in segments of the allocator. An iteration that
is not captured allocates as much in addition; so the pool is given up before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...devices.device.device import Device
from ...graphs.errors import MemplanError
from ...planner.schedule.schedule import Schedule
from ...program.program import Call, Operation, Program, Ref
from ...torch_support.torch_operators import ATTENTION, ATTENTION_BACKWARD
from ...torch_support.unsupported import warn_user
from ...updates.averages import averages
from ...updates.rules import if_finite, is_fused
from ...updates.updates import updates_weights
from ..codegen.codegen import is_plain

aten: Any = torch.ops.aten

MOST_CAPTURES = 8
"""Captures that a step holds. Steps with several batches per update need two or three."""

_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)

_DRAWING_ATTENTION = (*ATTENTION, *ATTENTION_BACKWARD)

_PATIENCE = 20
"""Iterations without a capture after which the user is warned."""

Run = Callable[[Sequence[Tensor], Sequence[Any]], Sequence[Tensor]]


def check_capturable(program: Program, schedule: Schedule, device: Device, *, counts: bool) -> None:
    """Raise MemplanError, one line, if iterations can't be captured as CUDA graphs.

    counts: whether the optimizer's updates depend on the number of the step.
    """
    if (reason := _refusal(program, schedule, device, counts=counts)) is not None:
        raise MemplanError(f"cuda_graph: {reason}")


def _refusal(program: Program, schedule: Schedule, device: Device, *, counts: bool) -> str | None:
    if not device.captures:
        return f"{device.torch.type} has no CUDA graphs; leave the option out"
    if not is_plain(schedule):
        return "this schedule has transfers or updates on the host: plan without a machine, by recomputation"
    if program.gradients:
        return (
            f"the gradient of {next(iter(program.gradients))} is a result, which each iteration would "
            "overwrite: give the optimizer to the plan (optimizer=, --optimizer)"
        )
    for operation in program.operations:
        if (reason := _why_not(program, operation, counts=counts)) is not None:
            return f"{operation.name} {reason}"
    return None


def _why_not(program: Program, operation: Operation, *, counts: bool) -> str | None:
    call = operation.call
    if call.target is if_finite or "infinite" in call.keywords:
        return "depends on a value, whether gradients are finite: use bfloat16, which needs no scaler"
    if averages(operation):
        return "waits for other processes"
    if updates_weights(operation) and counts and not is_fused(call.target, call.keywords):
        return "takes the number of the step as a number: make the optimizer with fused=True"
    if _waits_for_values(program, call):
        return "waits for values of the device"
    constants = {program.values[value].storage for value in program.constants}
    used = {*operation.writes, *operation.mutates, *set(operation.reads).difference(constants)}
    if getattr(call.target, "overloadpacket", None) in _DRAWING_ATTENTION:
        # Its seed and offset: tensors of the host otherwise, of the device in a capture.
        used -= {v.storage for v in program.values if v.dtype == torch.int64 and not v.shape}
    elsewhere = {v.device.type for v in program.values if v.storage in used} - {program.device.type}
    return f"takes or makes a tensor on {elsewhere.pop()}" if elsewhere else None


def _waits_for_values(program: Program, call: Call) -> bool:
    """Tell whether the call reads values on the device before it launches: `.item()`, indexing by a mask."""
    if call.target in _INDEXING:
        indices: Any = call.arguments[1]
        masks = (program.values[index.value] for index in indices if isinstance(index, Ref))
        return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)
    tags = set[Any](getattr(call.target, "tags", ()))
    return not tags.isdisjoint((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


class CapturedIteration:
    """The function of a step's iterations, replayed as CUDA graphs once it has run twice the same way.

    It is called as the generated code is. Results are copies: those of a graph are overwritten by the next.

    extra_bytes: of the device, in addition to the plan: of inputs, settings and copies of results.
    """

    def __init__(
        self,
        run: Run,
        captured: Run,
        device: Device,
        inputs: slice,
        by_tensor: Mapping[int, torch.dtype],
        before: Callable[[Sequence[Tensor]], None],
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        """Begin without a capture.

        run: the generated code, for iterations without a graph.
        captured: the same without a journal: a replay calls no Python.
        before: called with the residents before a replay, for the journal.
        inputs: which of the residents are inputs.
        by_tensor: the settings that are read from 0-dimensional tensors, and the dtypes of these.
        generators: those of the device from which iterations draw, in addition to its own.
        """
        self._run, self._run_captured, self._before = run, captured, before
        self._device, self._inputs, self._by_tensor = device, inputs, by_tensor
        self._generators = generators
        self._captures: dict[Any, Callable[[], Sequence[Tensor]]] = {}
        self._seen: set[Any] = set()
        self._static: list[Tensor] | None = None
        self._tensors: dict[int, Tensor] = {}
        self._pool: Any = None
        self._without = 0
        self.extra_bytes = 0

    def __call__(self, residents: Sequence[Tensor], settings: Sequence[float]) -> Sequence[Tensor]:
        key = self._key(residents, settings)
        if key not in self._seen:  # what occurs once is not worth a capture
            return self._uncaptured(key, residents, settings)
        self._without = 0
        self._fill(residents[self._inputs], settings)
        if key not in self._captures:
            self._captures[key] = self._captured(residents, settings)
        self._before(residents)
        copies = [result.clone() for result in self._captures[key]()]
        self.extra_bytes = sum(x.nbytes for x in (*copies, *(self._static or ()), *self._tensors.values()))
        return copies

    def release(self) -> None:
        """Give up all captures and their memory."""
        self._captures.clear()
        self._seen.clear()
        self._static, self._pool = None, None

    def _uncaptured(self, key: Any, residents: Sequence[Tensor], settings: Sequence[float]) -> Any:
        # This iteration allocates outside of the captures' pool, and both at once exceed the plan.
        if self._captures or len(self._seen) >= MOST_CAPTURES:
            self.release()
        self._without += 1
        if self._without == _PATIENCE:
            warn_user(
                f"cuda_graph: {_PATIENCE} iterations ran without a graph, since a number of the optimizer or "
                "a weight's memory differed each time: make a learning rate that changes a tensor, "
                "lr=torch.tensor(1e-3), with fused=True"
            )
        results = self._run(residents, settings)
        self._seen.add(key)
        return results

    def _key(self, residents: Sequence[Tensor], settings: Sequence[float]) -> Any:
        start, stop = self._inputs.start, self._inputs.stop
        constant = [number for index, number in enumerate(settings) if index not in self._by_tensor]
        if settings and 0 not in self._by_tensor:
            constant[0] = settings[0] == 1  # all that such updates ask of the number of the step
        stay = (*residents[:start], *residents[stop:])
        return tuple(constant), tuple(tensor.data_ptr() for tensor in stay)

    def _fill(self, inputs: Sequence[Tensor], settings: Sequence[float]) -> None:
        """Copy the batch and the settings to where the graphs read them."""
        if self._static is None:
            self._static = [_like(tensor) for tensor in inputs]
        for static, tensor in zip(self._static, inputs, strict=True):
            self._device.copy(tensor, static)
        for index, dtype in self._by_tensor.items():
            if index not in self._tensors:
                self._tensors[index] = torch.empty((), dtype=dtype, device=self._device.torch)
            self._tensors[index].fill_(settings[index])

    def _captured(
        self, residents: Sequence[Tensor], settings: Sequence[float]
    ) -> Callable[[], Sequence[Tensor]]:
        given = list(residents)
        given[self._inputs] = self._static or ()
        numbers = [self._tensors.get(index, number) for index, number in enumerate(settings)]
        if self._pool is None:
            self._device.synchronize()
            self._device.release_unused()  # a pool has segments of its own: cached ones would be in addition
            self._pool = self._device.pool()
        try:
            return self._device.captured(
                lambda: self._run_captured(given, numbers), self._generators, self._pool
            )
        except torch.OutOfMemoryError:  # a RuntimeError too, which the caller knows how to explain
            raise
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise MemplanError(f"cuda_graph: the iteration can't be captured: {text}") from error


def _like(tensor: Tensor) -> Tensor:
    """Make memory for an input, of its form. Raises MemplanError for one whose elements overlap."""
    made = tensor.clone()
    if made.stride() != tensor.stride():
        raise MemplanError("cuda_graph: an input's elements overlap or have gaps: give input.contiguous()")
    return made
