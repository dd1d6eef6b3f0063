"""Gradients in the form in which ranks scatter them: rows one after the other, in memory of their own, with
as many rows as shares have.

    … B2 ─w2.grad.local─▶ w2/spread ─w2.grad─▶ …

Many a gradient comes out of its operation in that form. For the others, and for those that ranks sum up in
another dtype, the copy is an operation of the program, so that its time and memory are planned.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...graphs.graph import Kind, Phase
from ...program.program import Call, Operation, Program, Ref, Storage
from ...torch_support.torch_fakes import FakeTensorMode
from ..storage.blocks import size_bytes
from .shards import Shards


def spread_rows(gradient: Tensor, rows: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of the gradient, contiguous, in memory for so many rows; those after its own are zero.

    dtype: of the copy, None for the gradient's.
    """
    made = gradient.new_empty((rows, *gradient.shape[1:]), dtype=dtype)
    length = gradient.shape[0]
    made[length:].zero_()
    own = made[:length]
    own.copy_(gradient)
    return own


def with_spread_gradients(program: Program, shards: Shards) -> Program:
    """Return the program whose gradients can be scattered as they lie."""
    values, storages = list(program.values), list(program.storages)
    gradients, later = dict(program.gradients), dict[int, list[Operation]]()
    made = {x: place for place, one in enumerate(program.operations) for x in (*one.writes, *one.mutates)}
    for name, local in program.gradients.items():
        form = values[local]
        precision = shards.precision.get(name)
        dtype = form.dtype if precision is None else precision.scattered
        if dtype == form.dtype and _can_be_sent(program, local, shards):
            continue
        rows = shards.rows(form.shape[0]) * shards.ranks.shards
        with FakeTensorMode():
            like = torch.empty((rows, *form.shape[1:]), dtype=dtype, device=form.device)
        before = storages[form.storage]
        storages[form.storage] = before._replace(name=f"{name}.grad.local", kind=Kind.GRADIENT)
        layer = program.storages[values[program.parameters[name]].storage].layer
        size = size_bytes(like, program.device)
        storages.append(Storage(f"{name}.grad", size, Kind.PARAMETER_GRADIENT, layer))
        made_form = form._replace(storage=len(storages) - 1, strides=tuple(like.stride()), offset=0)
        values.append(made_form._replace(dtype=dtype))
        gradients[name] = len(values) - 1
        keywords = {"rows": rows} if dtype == form.dtype else {"rows": rows, "dtype": dtype}
        call = Call(spread_rows, (Ref(local),), keywords, (gradients[name],), several=False)
        operation = Operation(
            name=f"{name}/spread",
            phase=Phase.BACKWARD,
            layer=layer,
            call=call,
            reads=(form.storage,),
            writes=(len(storages) - 1,),
            mutates=(),
            random=False,
        )
        later.setdefault(made[form.storage], []).append(operation)
    operations = [
        each for place, one in enumerate(program.operations) for each in (one, *later.get(place, ()))
    ]
    return replace(program, values=values, storages=storages, operations=operations, gradients=gradients)


def with_padding(program: Program, shards: Shards) -> Program:
    """Return the program with the sizes of spread tensors as ranks have them: equal shares, in whole blocks
    of the allocator.
    """
    storages = list(program.storages)
    spread = {program.values[value].storage: value for value in program.parameters.values()}
    spread |= {program.values[value].storage: value for value in program.states.values()}
    for x, storage in enumerate(storages):
        if storage.kind == Kind.PARAMETER_GRADIENT:
            spread[x] = next(value for value, form in enumerate(program.values) if form.storage == x)
    for x, value in spread.items():
        size = _share_bytes(program, shards, value) * shards.ranks.shards
        storages[x] = storages[x]._replace(bytes=size)
    return replace(program, storages=storages)


def with_local_states(program: Program, shards: Shards, master: str) -> Program:
    """Return the program in which optimizer states are this rank's shares, as it has them.

    The share of a weight that is its own master stays spread, as the weight is. master: the state's name.
    """
    values, storages = list(program.values), list(program.storages)
    for (name, state), first in program.states.items():
        if name in shards.precision and state == master:
            continue
        x = values[first].storage
        storages[x] = storages[x]._replace(bytes=_share_bytes(program, shards, first))
        for value, form in enumerate(values):
            if form.storage == x:
                shape = (shards.own_rows(form.shape[0]), *form.shape[1:])
                strides = torch.empty(shape, device="meta").stride()
                values[value] = form._replace(shape=shape, strides=strides)
    return replace(program, values=values, storages=storages)


def share_sizes(program: Program, shards: Shards, master: str) -> dict[int, int]:
    """Return by storage the bytes of a rank's shares that are of another dtype than their tensors.

    The share of a weight in mixed precision is its master, which takes no bytes besides.

    master: the name of that state.
    """
    sizes: dict[int, int] = {}
    for name in shards.precision.keys() & program.parameters.keys():
        weight = program.parameters[name]
        sizes[program.values[weight].storage] = _share_bytes(program, shards, weight, torch.float32)
        if (state := program.states.get((name, master))) is not None:
            sizes[program.values[state].storage] = 0
    return sizes


def _share_bytes(program: Program, shards: Shards, value: int, dtype: torch.dtype | None = None) -> int:
    """Return the bytes that the allocator takes for a rank's share of a value, in another dtype if given."""
    form = program.values[value]
    size = shards.padded_bytes(form, dtype) // shards.ranks.shards
    with FakeTensorMode():
        return size_bytes(torch.empty(size, dtype=torch.uint8, device=form.device), program.device)


def _can_be_sent(program: Program, value: int, shards: Shards) -> bool:
    """Tell whether a gradient lies as it is sent, in memory that nothing else is in or reads."""
    form = program.values[value]
    shape, count = form.shape, 1
    for length, stride in zip(reversed(shape), reversed(form.strides), strict=True):
        if stride != count and length != 1:  # of one row the stride says nothing
            return False
        count *= length
    used = any(form.storage in one.reads for one in program.operations)
    others = sum(program.values[each].storage == form.storage for each in program.gradients.values())
    written = any(form.storage in one.writes for one in program.operations)
    whole = shards.padded_bytes(form) == form.end == count * form.dtype.itemsize
    kind = program.storages[form.storage].kind
    return (
        whole
        and written
        and form.offset == 0
        and value not in program.views
        and not used
        and others == 1
        and kind == Kind.PARAMETER_GRADIENT
    )
