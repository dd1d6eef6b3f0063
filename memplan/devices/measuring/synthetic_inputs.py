"""Synthetic inputs for an operation of a program, without running all operations before it.

What an operation costs depends on the layout of its floating inputs, not on their values: a synthetic tensor
of the same shape, strides and dtype is enough, made when needed and dropped at once, so that measuring a
program never holds more than one operation's tensors. Two kinds of storage are kept true, from their
operation to their last use:

- integers and booleans: they are indices and masks, and a wrong one is an error or another cost;
- all that follows from inputs, buffers and constants alone, without a parameter or a random number: the
  positions, masks and buckets that some models compute through floating numbers.

An integer that depends on a parameter (the position of a maximum, what a dropout keeps) comes from its
operation run on synthetic inputs: it is possible, though not the one of training, and an index is put into
range. The ends of groups of rows, which decide what the call takes, are made up: groups of one size for the
time, and others for the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from ...program.program import Call, Operation, Program, Ref, Setting, Value, refs, values_read
from ..calls.collectives import is_collective
from ..calls.grouped import ENDS, is_grouped, routings, with_ends
from ..calls.indices import in_range
from .measure import copies

POOL_ELEMENTS = 2**16


class SyntheticInputs:
    """A walk through the program: `calls` for the operation at which it stands, then `advance` to the
    next.
    """

    def __init__(self, program: Program, residents: Mapping[int, torch.Tensor]) -> None:
        """Start at the program's first operation.

        residents: the tensors of inputs, buffers and constants by value; read, never changed.
        """
        self._program = program
        self._position = 0
        self._last_use = _last_uses(program)
        self._true = {program.values[v].storage: t.untyped_storage() for v, t in residents.items()}
        self.exact = set(self._true)
        self._integers = {value.storage for value in program.values if not _is_floating(value.dtype)}
        self._pools: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    @property
    def operation(self) -> Operation:
        """The operation at which the walk stands."""
        return self._program.operations[self._position]

    def calls(self) -> list[Callable[[], Any]]:
        """Return the operation's call on as many copies of its inputs as fill the cache."""
        operation = self.operation
        read = {self._program.values[value].storage for value in values_read(operation.call)}
        count = copies(sum(self._program.storages[storage].bytes for storage in read), self._device)
        own = bool(operation.mutates)
        # The other copies are in separate memory, so that each call finds its own out of the cache.
        return [self._bind(operation.call, own=own or copy > 0) for copy in range(count)]

    def call(self) -> partial[Any]:
        """Return the operation's call, once."""
        operation = self.operation
        return self._bind(operation.call, own=bool(operation.mutates))

    def calls_by_data(self) -> list[Callable[[], Any]]:
        """Return the call on other data, if that decides what memory it takes."""
        if not is_grouped(self.operation.call.target, self.operation.call.arguments):
            return []
        call = self.call()
        return [partial(call.func, *with_ends(call.args, ends)) for ends in routings(call.args)]

    def calls_on_host(self) -> list[Callable[[], Any]]:
        """Return the calls with all tensors in host memory. Only for calls that change no true storages."""
        call = self.operation.call
        forms = {v: self._program.values[v]._replace(device=torch.device("cpu")) for v in values_read(call)}
        size = sum(elements_spanned(form) * form.dtype.itemsize for form in forms.values())

        def bound() -> Callable[[], Any]:
            tensors = {value: self._on_host(form) for value, form in forms.items()}
            return self._call(call, tensors)

        return [bound() for _ in range(copies(size))]

    def advance(self, *, run: bool = True) -> None:
        """Keep what later operations need true, drop what none needs any more.

        run: False if the operation can't run: what it makes is not kept.
        """
        operation = self.operation
        alone = not is_collective(operation.call)  # else other ranks would have to run it too, at this moment
        exact = alone and not operation.random and self.exact.issuperset(operation.reads)
        if exact:
            self.exact.update(operation.writes)
        kept = set(operation.writes) & (self.exact | self._integers)
        read_later = any(self._last_use[storage] > self._position for storage in kept)
        if run and alone and read_later and not operation.mutates:
            self._run(operation, kept)
        for storage in (*operation.reads, *operation.writes):
            if self._last_use[storage] <= self._position:
                self._true.pop(storage, None)
        self._position += 1

    @property
    def _device(self) -> str:
        return str(self._program.device)

    def _run(self, operation: Operation, kept: set[int]) -> None:
        result = self._bind(operation.call, own=False)()
        results = result if operation.call.several else (result,)
        for output, tensor in zip(operation.call.outputs, results, strict=True):
            if output is not None and (storage := self._program.values[output].storage) in kept:
                self._true[storage] = tensor.untyped_storage()

    def _bind(self, call: Call, *, own: bool) -> partial[Any]:
        """Bind the call to its arguments: true tensors where they are kept, synthetic inputs elsewhere.

        own: true storages are copied too.
        """
        storages: dict[int, torch.UntypedStorage] = {}
        tensors: dict[int, torch.Tensor] = {}
        for index in values_read(call):
            value = self._program.values[index]
            true = self._true.get(value.storage)
            if true is None:
                tensors[index] = self._stand_in(value)
            else:
                # One for all values in it: they stay views of one memory.
                storage = storages.setdefault(value.storage, true.clone() if own else true)
                empty = torch.empty(0, dtype=value.dtype, device=value.device)
                tensors[index] = empty.set_(storage, value.offset, value.shape, value.strides)
        return self._call(call, tensors)

    def _call(self, call: Call, tensors: Mapping[int, torch.Tensor]) -> partial[Any]:
        """Bind the call to these tensors, with what follows from values that are not the real ones made
        up.
        """
        arguments = substitute(call.arguments, tensors)
        if is_grouped(call.target, arguments) and not self._is_exact(call.arguments[ENDS]):
            arguments = with_ends(arguments, routings(arguments)[0])
        exact = [all(self._program.values[v].storage in self.exact for v in refs(a)) for a in call.arguments]
        arguments = in_range(call.target, arguments, exact)
        return partial(call.target, *arguments, **substitute(call.keywords, tensors))

    def _on_host(self, form: Value) -> torch.Tensor:
        true = self._true.get(form.storage)
        if true is None:
            return self._stand_in(form)
        return torch.empty(0, dtype=form.dtype, device="cpu").set_(
            true.cpu(), form.offset, form.shape, form.strides
        )

    def _is_exact(self, argument: Ref) -> bool:
        return self._program.values[argument.value].storage in self.exact

    def _stand_in(self, value: Value) -> torch.Tensor:
        pool = self._pools.get((value.dtype, value.device))
        if pool is None:
            # A separate generator: measuring must not advance the user's random numbers.
            uniform = torch.rand(POOL_ELEMENTS, generator=torch.Generator().manual_seed(0), device="cpu")
            pool = self._pools[value.dtype, value.device] = uniform.to(value.device, value.dtype)
        extent = elements_spanned(value)
        flat = torch.empty(extent, dtype=value.dtype, device=value.device)
        # One call for all rows: a call of each would wake the threads of each, and wait for them.
        rows, rest = divmod(extent, POOL_ELEMENTS)
        flat[: extent - rest].view(rows, POOL_ELEMENTS).copy_(pool)
        flat[extent - rest :].copy_(pool[:rest])
        # From the first element on: what lies before a value's offset is never read.
        return flat.as_strided(value.shape, value.strides)


class Layout(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...


def elements_spanned(value: Layout) -> int:
    """Return the number of elements from a value's first to its last, those that the strides skip
    included.
    """
    if 0 in value.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))


def signature(program: Program, call: Call) -> Hashable:
    """Return the signature of a call: target, layouts, other arguments, and which of these are the same.

    Calls with equal signatures cost the same.
    """
    order = {value: position for position, value in enumerate(values_read(call))}

    def describe(argument: Any) -> Hashable:
        if isinstance(argument, Ref):
            value = program.values[argument.value]
            return order[argument.value], value.shape, value.strides, value.dtype, value.device
        if isinstance(argument, tuple | list):
            return tuple(map(describe, argument))
        if isinstance(argument, Mapping):
            return tuple((name, describe(part)) for name, part in argument.items())
        return repr(argument)

    return call.target, describe(call.arguments), describe(call.keywords)


def substitute(
    argument: Any, tensors: Mapping[int, torch.Tensor], settings: Sequence[float] | None = None
) -> Any:
    """Return the argument with every Ref replaced by a tensor, and every Setting by a number (its example
    by default).
    """
    if isinstance(argument, Ref):
        return tensors[argument.value]
    if isinstance(argument, Setting):
        return argument.example if settings is None else settings[argument.index]
    if isinstance(argument, tuple | list):
        return type(argument)(substitute(part, tensors, settings) for part in argument)
    if isinstance(argument, Mapping):
        return {name: substitute(part, tensors, settings) for name, part in argument.items()}
    return argument


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _last_uses(program: Program) -> list[int]:
    """Return per storage the last operation that reads it, -1 if none does."""
    last = [-1] * len(program.storages)
    for position, operation in enumerate(program.operations):
        for storage in (*operation.reads, *operation.mutates):
            last[storage] = position
    return last
