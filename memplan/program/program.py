"""A traced training iteration: straight-line calls over storages, without side effects until its end.

    storage    a block of memory: a tensor of the graph.
    value      a view into one storage, as PyTorch sees a tensor: shape, strides, offset, dtype.
    operation  a call that makes new storage, or changes some in place (residents, sums of gradients).
    view       a call that makes no storage, only another value of one that is there.

Storages, values and operations are known by their index. A value is the result of an operation, the
result of a view, or a resident: a parameter, a buffer, an input or a constant of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from ..graphs.graph import Kind, Phase
from ..torch_support.reach import Path
from .handover import HANDOVER
from .outputs import NOTHING, Output

Target = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """Placeholder for a value among a call's arguments."""

    value: int


@dataclass(frozen=True, slots=True)
class Setting:
    """Placeholder for a number that the caller gives for each iteration.

    index: its position among these.
    example: a possible value.
    """

    index: int
    example: float


@dataclass(frozen=True, slots=True)
class Call:
    """`target(*arguments, **keywords)`, every tensor replaced by a Ref, every setting by a Setting.

    outputs: the values of the results, None for one that is not a tensor or that nobody reads.
    several: the target returns a tuple or list, even if of one.
    """

    target: Target
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    several: bool

    @property
    def generator(self) -> torch.Generator | None:
        """Return the random generator that the call takes.

        Returns None if it draws from the device's default one, or not at all.
        """
        given = (*self.arguments, *self.keywords.values())
        return next((each for each in given if isinstance(each, torch.Generator)), None)


class Storage(NamedTuple):
    """A storage of the program.

    bytes: as the device allocator counts them; 0 for one that is not on the device.
    """

    name: str
    bytes: int
    kind: Kind
    layer: str | None


class Value(NamedTuple):
    """A tensor as a view into a storage.

    storage: its index.
    strides, offset: in elements.
    """

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @property
    def end(self) -> int:
        """Return the bytes from the start of the storage to the end of the value's last element."""
        if 0 in self.shape:  # it needs no bytes, wherever it begins
            return 0
        # PyTorch has no negative strides: the last index is the furthest.
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset + last + 1) * self.dtype.itemsize


class Operation(NamedTuple):
    """A call that makes storage or changes it in place.

    reads, writes, mutates: storages.
    random: it draws random numbers.
    """

    name: str
    phase: Phase
    layer: str | None
    call: Call
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    mutates: tuple[int, ...]
    random: bool

    @property
    def once(self) -> bool:
        """Tell whether it must not be recomputed: the loss, changes in place, communication with other
        processes.
        """
        return self.phase == Phase.LOSS or bool(self.mutates) or getattr(self.call.target, "once", False)

    @property
    def overlaps(self) -> bool:
        """Tell whether it is of the queue between the ranks, so that computations go on meanwhile."""
        return getattr(self.call.target, "overlaps", False)


class ValuesUsed(Protocol):
    """Interface of the answers of inputs and buffers that a trace has used: guards/values_used.py."""

    def difference(self, tensors: Mapping[str, torch.Tensor]) -> str | None: ...
    def texts(self) -> list[str]: ...
    @property
    def of_inputs(self) -> bool: ...


class Reads(Protocol):
    """Interface of what a trace has read of Python's objects: guards/reads/reads.py."""

    def difference(self, inputs: Mapping[str, torch.Tensor] = ..., /) -> object | None: ...


class HostPart(Protocol):
    """Interface of the code of an iteration that runs after each planned one: tracing/host_part.py."""

    def run(self, inputs: Any, results: Mapping[str, torch.Tensor]) -> None: ...


@dataclass(frozen=True, eq=False)
class Program:
    """One iteration, in the order in which eager PyTorch runs it.

    views: per value that is a view, the call that makes it from a value of the same storage.
    parameters, buffers, inputs: the values that the caller brings, by name, in order. `inputs` are the
        tensors among the example inputs.
    constants: tensors that the trace holds itself.
    held: of the constants those that attributes of the module hold, and the path to each.
    loss: its value, None if there is none.
    gradients: per parameter that gets one which no update uses up, its value.
    input_gradients: per input whose gradient is a result, its value.
    outputs: the requested ones of the tensors that the module returns.
    output: the nest that they are in.
    norm: the value of the norm of all gradients, if they are clipped by it.
    infinite: the value that says whether a gradient is not finite, if they are of a scaled loss.
    states: of the optimizer, if weights are updated: values that the caller brings, by parameter and name.
    compiling: traced with `torch.compiler.is_compiling()` true, which some models branch on.
    generators: of the model's own that operations draw from, by the path to the attribute that holds each.
    used: what the trace has used of the values of inputs and buffers, if anything.
    reads: what it has read of Python's objects: attributes, items, globals.
    host_part: the code, if it runs once more after each iteration; its results are among `outputs`.
    """

    device: torch.device
    storages: Sequence[Storage]
    values: Sequence[Value]
    operations: Sequence[Operation]
    views: Mapping[int, Call]
    parameters: Mapping[str, int]
    buffers: Mapping[str, int]
    inputs: Mapping[str, int]
    constants: Mapping[int, torch.Tensor]
    loss: int | None
    gradients: Mapping[str, int]
    states: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    input_gradients: Mapping[str, int] = field(default_factory=dict[str, int])
    held: Mapping[int, Path] = field(default_factory=dict[int, Path])
    outputs: Mapping[str, int] = field(default_factory=dict[str, int])
    output: Output = NOTHING
    norm: int | None = None
    infinite: int | None = None
    compiling: bool = False
    generators: Mapping[Path, torch.Generator] = field(default_factory=dict[Path, torch.Generator])
    used: ValuesUsed | None = field(default=None, compare=False)
    reads: Reads | None = field(default=None, compare=False)
    host_part: HostPart | None = field(default=None, compare=False)
    fingerprint: str = ""
    trace_seconds: float = field(default=0.0, compare=False)

    @cached_property
    def input_begins(self) -> dict[int, int]:
        """Return per storage of inputs the offset, in elements, of the input that begins first in it."""
        found: dict[int, int] = {}
        for value in self.inputs.values():
            form = self.values[value]
            found[form.storage] = min(form.offset, found.get(form.storage, form.offset))
        return found

    @property
    def random_sources(self) -> tuple[torch.device | torch.Generator, ...]:
        """Return the generators that it may draw from; a device means its default one.

        A program of any device may draw on the CPU, and move the numbers.
        """
        devices = dict.fromkeys((self.device, torch.device("cpu")))  # one entry if it is the CPU
        return (*devices, *self.generators.values())

    def source_of(self, operation: Operation) -> torch.device | torch.Generator:
        """Return the generator that a random operation draws from: one that it takes, or the default one of
        the device of its results.
        """
        if (given := operation.call.generator) is not None:
            return given
        made = (self.values[output].device for output in operation.call.outputs if output is not None)
        return next(made, self.device)

    @property
    def residents(self) -> tuple[int, ...]:
        """Return the values that are there when an iteration starts, in the order in which the iteration
        takes them.
        """
        groups = (self.parameters, self.buffers, self.states, self.inputs)
        return (*(value for group in groups for value in group.values()), *self.constants)

    def residents_changed(self, operation: Operation) -> tuple[int, ...]:
        """Return the storages that an operation changes in place and that outlive the iteration."""
        # Kinds up to this one are those of residents.
        return tuple(x for x in operation.mutates if self.storages[x].kind <= Kind.OPTIMIZER_STATE)

    @property
    def returned(self) -> tuple[int, ...]:
        """Return the values that an iteration leaves: loss, outputs, gradients, their norm, and whether
        one is infinite.
        """
        single = (self.loss, self.norm, self.infinite)
        loss, norm, infinite = (() if one is None else (one,) for one in single)
        gradients = (*self.gradients.values(), *self.input_gradients.values())
        return (*loss, *self.outputs.values(), *gradients, *norm, *infinite)

    @property
    def results(self) -> tuple[int, ...]:
        """Return the storages of the returned values.

        Cotangents are among them: autograd holds them to the end of the backward part.
        """
        cotangents = () if self.handover is None else self.handover.writes
        returned = (self.values[value].storage for value in self.returned)
        return tuple(dict.fromkeys((*returned, *cotangents)))

    @property
    def handover(self) -> Operation | None:
        """Return the operation between the two halves of an iteration that is part of a larger graph."""
        return next((one for one in self.operations if one.call.target is HANDOVER), None)

    @property
    def handed_over(self) -> frozenset[int]:
        """Return the storages that the caller holds from the handover on: nobody else can free them."""
        if self.handover is None:
            return frozenset()
        return frozenset(self.values[value].storage for value in self.outputs.values())

    @property
    def handed_over_bytes(self) -> int:
        """Return the bytes of outputs and cotangents, which the caller may hold while a schedule moves copies
        of them.
        """
        there = self.handed_over.union(() if self.handover is None else self.handover.writes)
        return sum(self.storages[x].bytes for x in there)

    @property
    def ends(self) -> dict[int, int]:
        """Return per storage with values the bytes that these need: a storage's own size may be a rounded
        one.
        """
        found: dict[int, int] = {}
        for value in self.values:
            found[value.storage] = max(value.end, found.get(value.storage, 0))
        return found


def refs(argument: object) -> Iterator[int]:
    """Yield the values in an argument, nested ones included, in order."""
    if isinstance(argument, Ref):
        yield argument.value
    elif isinstance(argument, tuple | list):
        for part in argument:  # pyright: ignore[reportUnknownVariableType]
            yield from refs(part)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(argument, Mapping):
        for part in argument.values():  # pyright: ignore[reportUnknownVariableType]
            yield from refs(part)  # pyright: ignore[reportUnknownArgumentType]


def values_read(call: Call) -> tuple[int, ...]:
    """Return the values among a call's arguments, each once, in order."""
    return tuple(dict.fromkeys((*refs(call.arguments), *refs(call.keywords))))
