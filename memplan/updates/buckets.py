"""Buckets: small weights of one layer that are copied and updated together.

    … ─w2.grad─▶ w2/update … ─w1.grad─▶ w1/update          a copy each for w1, w2, their gradients and states
    … ─w2.grad─▶ … ─w1.grad─▶ w2..w1/pack ─▶ w2..w1/update      one for all weights, one for all gradients, …

Each copy to or from the host takes the link's latency, which is most of what a bias or an adapter takes. So
the weights of a bucket are one tensor of the graph, as are their states, and their gradients from `pack` on.
Solvers, simulator and bounds see ordinary tensors. The tensors themselves stay the user's: where a schedule
moves them they are views of one memory while a step has them (runtime/run/ownership.py).

A bucket's updates are one operation, with the bits of the optimizer: one kernel if they are fused. The sums
of several batches' gradients are one tensor too, to which `pack`'s result is added by one operation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..devices.device.choice import device_of
from ..devices.storage.blocks import size_bytes
from ..graphs.errors import InputError
from ..graphs.graph import Kind, Phase
from ..model.accumulated import SUM
from ..program.names import Names, full_name
from ..program.program import Call, Operation, Program, Ref, Storage, Value, refs, values_read
from ..torch_support.torch_fakes import FakeTensorMode
from ..torch_support.torch_optimizers import kernel_for_lists
from .averages import after_next, is_dense, places_in_bucket
from .rules import in_bucket, of_whole_weight, runs, with_rule
from .sums import FIRST, add, add_in_bucket, sums_of
from .updates import updates_weights

_LAYER = re.compile(r".*?(?<![^.])\d+(?![^.])")
"""A module's path up to its first number: `model.layers.3`."""

_ALIGNMENT = 64
"""Bytes of which a tensor's offset is a multiple, if the device's allocator has no larger blocks."""


def pack(*gradients: Tensor) -> tuple[Tensor, ...]:
    """Return copies of gradients that lie in one memory."""
    places, size = places_in_bucket(gradients)
    flat = torch.empty(size, dtype=gradients[0].dtype, device=gradients[0].device)
    made = [
        flat.as_strided(each.shape, each.stride(), place)
        for each, place in zip(gradients, places, strict=True)
    ]
    kernel_for_lists("copy_")(made, list(gradients))
    return tuple(made)


def with_buckets(program: Program, size: int) -> Program:
    """Return the program that updates small weights together.

    size: the most bytes of weights in a bucket; a weight of as many bytes is updated alone.

    Raises InputError if no two weights can be updated together.
    """
    found = [bucket for bucket in _buckets(program, size) if len(bucket) > 1]
    if not found:
        raise InputError(
            f"bucket_size={size:,}: no two weights of one layer are smaller and updated in one way: give "
            "a larger size, or leave it out"
        )
    writer = _Writer(program)
    for bucket in found:
        writer.add(bucket)
    return writer.program()


def buckets_of(program: Program) -> frozenset[int]:
    """Return the storages of weights, states and sums that are updated together."""
    updates = (one for one in program.operations if runs(one.call, in_bucket))
    found = {x for one in updates for x in one.mutates}
    # A batch that only adds has no updates: states of several weights share a storage in a bucket alone.
    parameters: dict[int, set[str]] = {}
    for (parameter, _state), value in program.states.items():
        parameters.setdefault(program.values[value].storage, set()).add(parameter)
    for storage, names in parameters.items():
        if len(names) > 1:
            found |= {storage, *(program.values[program.parameters[name]].storage for name in names)}
    return frozenset(found)


class _Member(NamedTuple):
    """A weight that may be updated together with others.

    place: of its update among the operations. states: values.
    key: what those have in common that are in one bucket.
    """

    place: int
    weight: int
    gradient: int
    states: tuple[int, ...]
    key: object


def _buckets(program: Program, size: int) -> list[list[_Member]]:
    """Return the weights that are updated together, in the order of their updates.

    Those of another layer come later in backward, so a layer's first update closes the buckets before it.
    """
    found, opened = list[list[_Member]](), dict[object, list[_Member]]()
    left = dict[object, int]()
    before: str | None = None
    for member in _members(program, size):
        layer = _layer(program, member)
        if layer != before:
            opened.clear()
        before, bytes_ = layer, _bytes(program.values[member.weight])
        if member.key not in opened or left[member.key] < bytes_:
            found.append([])
            opened[member.key], left[member.key] = found[-1], size
        opened[member.key].append(member)
        left[member.key] -= bytes_
    return found


def _layer(program: Program, member: _Member) -> str | None:
    name = program.storages[program.values[member.weight].storage].layer
    matched = _LAYER.match(name or "")
    return matched and matched[0]


def _members(program: Program, size: int) -> Iterator[_Member]:
    """Yield the small weights whose updates could run together with others."""
    alone = _Alone(program)
    for place, operation in enumerate(program.operations):
        call = operation.call
        if not updates_weights(operation) or of_whole_weight(call) is None:
            continue
        weight, gradient, *states = refs(call.arguments)
        own = [program.values[value] for value in (weight, *states)]
        form = program.values[gradient]
        like = (form.shape, form.strides, form.device) == (own[0].shape, own[0].strides, own[0].device)
        if not (0 < _bytes(own[0]) < size and like and all(map(is_dense, (*own, form)))):
            continue
        if alone.moves(operation, [one.storage for one in own]) and alone.makes(form.storage):
            keywords = {name: repr(value) for name, value in call.keywords.items()}
            kinds = [program.values[value].dtype for value in (weight, gradient, *states)]
            key = (call.target.__name__, repr(keywords), *map(repr, kinds), repr(call.arguments[-2:]))
            yield _Member(place, weight, gradient, tuple(states), key)


class _Alone:
    """What a program's storages are used for, other than the update of one weight."""

    def __init__(self, program: Program) -> None:
        values = program.values
        self._residents = Counter(values[value].storage for value in program.residents)
        self._changed = Counter(x for one in program.operations for x in one.mutates)
        # Such a call names an offset in the storage, which is another one in a bucket.
        calls = (*(one.call for one in program.operations), *program.views.values())
        by_offset = (call for call in calls if "as_strided" in full_name(call.target))
        self._named = {values[value].storage for call in by_offset for value in values_read(call)}
        self._made = {x for one in program.operations for x in one.writes}
        self._results, self._sums = set(program.results), sums_of(program)

    def moves(self, update: Operation, storages: Sequence[int]) -> bool:
        """Tell whether storages hold one tensor each, which this update alone changes."""
        return set(storages) == {*update.mutates} and all(
            self._residents[x] == 1 and self._changed[x] == 1 and x not in self._named for x in storages
        )

    def makes(self, gradient: int) -> bool:
        """Tell whether a gradient, or a sum of several, is made in the iteration, and is no result of it."""
        if gradient in self._sums:
            return self._changed[gradient] == 1 and gradient not in self._named
        return gradient in self._made and gradient not in self._results


class _Writer:
    """Writer of the program with buckets.

    moved: by storage that lies in a bucket now, the bucket's storage and the offset in bytes.
    gone: places of the updates and sums that are part of others, and of what comes later.
    adds: by the storage of a sum, the place where a gradient is added to it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._storages, self._values = list(program.storages), list(program.values)
        self._moved: dict[int, tuple[int, int]] = {}
        self._gone = set[int]()
        self._later: dict[int, list[Operation]] = {}
        adds = [place for place, one in enumerate(program.operations) if one.call.target is add]
        self._adds = {program.operations[place].mutates[0]: place for place in adds}
        self._names, self._operations = Names(), Names()
        for storage in program.storages:
            self._names.unique(storage.name)
        for operation in program.operations:
            self._operations.unique(operation.name)

    def add(self, bucket: Sequence[_Member]) -> None:
        program = self._program
        first, last = (self._storage_of(one.weight).name for one in (bucket[0], bucket[-1]))
        name, layer = f"{first}..{last}", _layer(program, bucket[0])
        weights = self._together([one.weight for one in bucket], name, Kind.PARAMETER, layer)
        states = [value for one in bucket for value in one.states]
        changed = [weights]
        if states:
            changed.append(self._together(states, f"{name}.states", Kind.OPTIMIZER_STATE, layer))
        self._gone.update(one.place for one in bucket)
        gradients: Sequence[int] = [one.gradient for one in bucket]
        if program.values[gradients[0]].storage in self._adds:
            gradients = self._sum(gradients, name, layer)
        else:
            gradients, _place = self._pack(gradients, name, layer)
        model = program.operations[bucket[-1].place]
        given = zip(bucket, gradients, strict=True)
        members = [(one.weight, gradient, *one.states) for one, gradient in given]
        arguments: list[Any] = [tuple(map(Ref, member)) for member in members]
        call = replace(with_rule(model.call, in_bucket), arguments=(*arguments, *model.call.arguments[-2:]))
        others = refs(model.call.keywords)
        read = (self._values[value].storage for value in (gradients[0], *others))
        update = Operation(
            name=self._operations.unique(f"{name}/update"),
            phase=Phase.UPDATE,
            layer=layer,
            call=call,
            reads=tuple(dict.fromkeys(read)),
            writes=(),
            mutates=tuple(changed),
            random=False,
        )
        # Where the last member's update was: all gradients are complete.
        self._later.setdefault(bucket[-1].place, []).append(update)

    def _sum(self, totals: Sequence[int], name: str, layer: str | None) -> Sequence[int]:
        """Put the sums of gradients together, to which all are added at once; return the sums' values."""
        program = self._program
        sums = {program.values[value].storage for value in totals}
        adds = [program.operations[self._adds[program.values[value].storage]] for value in totals]
        gradients, place = self._pack([_added(one) for one in adds], name, layer)
        storage = self._together(totals, f"{name}.{SUM}", Kind.OPTIMIZER_STATE, layer)
        pairs = [(Ref(total), Ref(gradient)) for total, gradient in zip(totals, gradients, strict=True)]
        adding = Operation(
            name=self._operations.unique(f"{name}/add"),
            phase=Phase.BACKWARD,
            layer=layer,
            call=Call(add_in_bucket, (FIRST, *pairs), {}, (), several=False),
            reads=(self._values[gradients[0]].storage,),
            writes=(),
            mutates=(storage,),
            random=False,
        )
        self._gone |= {self._adds[x] for x in sums}
        # A sum's norm may have come before the last gradient of the bucket.
        early = [
            n
            for n, one in enumerate(program.operations[: place + 1])
            if n not in self._gone and not sums.isdisjoint(one.reads)
        ]
        self._gone.update(early)
        self._later[place] += [adding, *(program.operations[n] for n in early)]
        return totals

    def _pack(self, gradients: Sequence[int], name: str, layer: str | None) -> tuple[list[int], int]:
        """Add the operation that packs gradients, after the last that uses one and the average it waits for.

        Returns the new values, and the place after which they are there.
        """
        program = self._program
        forms = [program.values[value] for value in gradients]
        storages = tuple(dict.fromkeys(form.storage for form in forms))
        for x in storages:
            # From here on the packed one is the parameters' gradient.
            self._storages[x] = self._storages[x]._replace(kind=Kind.GRADIENT)
        with FakeTensorMode():
            made = pack(
                *(
                    torch.empty_strided(each.shape, each.strides, dtype=each.dtype, device=each.device)
                    for each in forms
                )
            )
            size = size_bytes(made[0], program.device)
        storage = self._new(f"{name}.grad", size, Kind.PARAMETER_GRADIENT, layer)
        found = list[int]()
        for each in made:
            layout = (tuple(each.shape), tuple(each.stride()), int(each.storage_offset()))
            self._values.append(Value(storage, *layout, each.dtype, each.device))
            found.append(len(self._values) - 1)
        packed = Operation(
            name=self._operations.unique(f"{name}/pack"),
            phase=Phase.BACKWARD,
            layer=layer,
            call=Call(pack, tuple(map(Ref, gradients)), {}, tuple(found), several=True),
            reads=storages,
            writes=(storage,),
            mutates=(),
            random=False,
        )
        used = (
            place
            for place, one in enumerate(program.operations)
            if not updates_weights(one)
            and not {*storages}.isdisjoint((*one.reads, *one.writes, *one.mutates))
        )
        place = after_next(program, max(used))
        self._later.setdefault(place, []).append(packed)
        return found, place

    def _together(self, values: Sequence[int], name: str, kind: Kind, layer: str | None) -> int:
        """Put the storages of these values into one, and return that."""
        device, end = self._program.device, 0
        alignment = max(_ALIGNMENT, device_of(device).block_bytes)
        storage = len(self._storages)
        for value in values:
            form = self._program.values[value]
            self._moved[form.storage] = storage, end
            end += -(-form.end // alignment) * alignment
        with FakeTensorMode():
            size = size_bytes(torch.empty(end, dtype=torch.uint8, device=device), device)
        return self._new(name, size, kind, layer)

    def _new(self, name: str, size: int, kind: Kind, layer: str | None) -> int:
        self._storages.append(Storage(self._names.unique(name), size, kind, layer))
        return len(self._storages) - 1

    def _storage_of(self, value: int) -> Storage:
        return self._program.storages[self._program.values[value].storage]

    def program(self) -> Program:
        left = [x for x in range(len(self._storages)) if x not in self._moved]
        new = {x: place for place, x in enumerate(left)}
        new |= {x: new[bucket] for x, (bucket, _offset) in self._moved.items()}
        operations = [
            _with_storages(each, new)
            for place, one in enumerate(self._program.operations)
            for each in (*([] if place in self._gone else [one]), *self._later.get(place, ()))
        ]
        return replace(
            self._program,
            storages=[self._storages[x] for x in left],
            values=[self._value(value, new) for value in self._values],
            operations=operations,
        )

    def _value(self, value: Value, new: Mapping[int, int]) -> Value:
        _bucket, offset = self._moved.get(value.storage, (0, 0))
        # Offsets in a bucket are multiples of what any dtype takes.
        return value._replace(
            storage=new[value.storage], offset=value.offset + offset // value.dtype.itemsize
        )


def _with_storages(operation: Operation, new: Mapping[int, int]) -> Operation:
    reads, writes, mutates = (
        tuple(dict.fromkeys(new[x] for x in group))
        for group in (operation.reads, operation.writes, operation.mutates)
    )
    return operation._replace(reads=reads, writes=writes, mutates=mutates)


def _added(operation: Operation) -> int:
    """Return the gradient that an operation adds to a sum."""
    _total, gradient = refs(operation.call.arguments)
    return gradient


def _bytes(form: Value) -> int:
    return prod(form.shape) * form.dtype.itemsize
