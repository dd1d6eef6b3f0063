"""The structure of a program: what it computes from what, without sizes. Iterations of one model on batches
of other lengths mostly have the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch

from .names import full_name
from .program import Call, Program, Ref, Setting

_SIZE = "#"
"""Replacement of every number: sizes cannot be distinguished from other numbers."""


def structure(program: Program) -> str:
    """Return a digest of operations, views and results in their order, in which numbers do not count.

    Programs with equal digests have the same graph but for bytes and times, under the same indices: a
    schedule of one is a schedule of the other.
    """
    digest = sha256()
    for line in _lines(program):
        digest.update(repr(line).encode())
    return digest.hexdigest()


def graph_form(program: Program) -> str:
    """Return a digest of the program's graph: which operations read and change which storages.

    Programs with equal digests have the same graph but for bytes and times, under the same indices. Their
    views may differ: of ranks that run one program each takes its own part of a tensor.
    """
    digest = sha256(repr(program.results).encode())
    for group in (program.parameters, program.buffers, program.inputs, program.states):
        digest.update(repr([(name, program.values[value].storage) for name, value in group.items()]).encode())
    for storage in program.storages:
        digest.update(repr((storage.kind, storage.layer)).encode())
    for one in program.operations:
        what = full_name(one.call.target), one.phase, one.layer, one.random
        digest.update(repr((*what, one.reads, one.writes, one.mutates)).encode())
    return digest.hexdigest()


def _lines(program: Program) -> Iterator[object]:
    yield program.device, program.compiling, program.loss, program.norm, program.infinite
    groups = (program.parameters, program.buffers, program.inputs, program.gradients, program.states)
    for group in (*groups, program.input_gradients, program.outputs, program.held):
        yield list(group.items())
    yield list(program.constants), list(program.generators)
    for storage in program.storages:
        yield storage.kind, storage.layer
    for value in program.values:
        yield value.storage, len(value.shape), value.dtype, value.device  # sizes, strides and offsets differ
    for one in program.operations:
        yield one.phase, one.layer, one.reads, one.writes, one.mutates, one.random, _call(one.call)
    for index, call in program.views.items():
        yield index, _call(call)


def _call(call: Call) -> object:
    arguments = _argument(call.arguments), _argument(call.keywords)
    return full_name(call.target), arguments, call.outputs, call.several


def _argument(argument: Any) -> object:
    """Return what of an argument is the same for other sizes."""
    if isinstance(argument, Ref | Setting):
        return type(argument).__name__, argument.value if isinstance(argument, Ref) else argument.index
    if isinstance(argument, tuple | list):
        return tuple(_argument(part) for part in argument)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(argument, Mapping):
        return tuple((name, _argument(part)) for name, part in argument.items())  # pyright: ignore[reportUnknownVariableType]
    # A flag is never a size, and chooses what is computed.
    if isinstance(argument, int | float | complex) and not isinstance(argument, bool):
        return _SIZE
    return "generator" if isinstance(argument, torch.Generator) else repr(argument)
