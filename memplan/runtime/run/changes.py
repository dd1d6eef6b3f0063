"""Changes in place, as autograd counts them: of what backward needs, and of what iterations change.

Eager PyTorch saves tensors for backward, and `backward` raises an error if one has changed in place since. A
planned iteration has computed its gradients already: its loss saves the same tensors, for the same error.
What an iteration changes counts as in eager PyTorch, for graphs of the user's that have saved it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...devices.calls.batch_norm import FUNCTIONAL
from ...devices.calls.cumulative_norm import STATISTICS
from ...graphs.graph import Phase
from ...program.program import Operation, Program, Ref
from ...torch_support.reach import spelled
from ...torch_support.torch_fakes import no_torch_function
from ...torch_support.torch_tensors import set_version, version_of
from ...updates.sums import adds_up
from ...updates.updates import updates_weights

_COPY: Any = torch.ops.aten.copy_.default
_STATISTICS = {*FUNCTIONAL.values(), STATISTICS}
"""Operators whose last two results are the new statistics of a batch norm."""


class Lasting(NamedTuple):
    """Tensors that are there before and after an iteration.

    own, inputs: names of parameters and buffers, and of inputs.
    constants: those that attributes hold, by their path.
    """

    own: list[str]
    inputs: list[str]
    constants: dict[str, Tensor]


class Changes:
    """The tensors that eager PyTorch's iteration would save, and the changes that it would count.

    moved: storages that the schedule moves. Their tensors change where autograd counts nothing.
    """

    def __init__(self, program: Program, moved: Container[int]) -> None:
        self._saved = lasting(program, read_by_backward(program))
        changed, statistics = changed_residents(program), _statistics(program)
        named = {**program.parameters, **program.buffers}
        storages = {name: program.values[value].storage for name, value in named.items()}
        self._counted = {
            name: x not in statistics
            for name, x in storages.items()
            if x in changed and (x in moved or x in statistics)
        }

    def saved(self, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the tensors, given by name, that eager PyTorch saves for backward, and constants."""
        own, of_inputs, constants = self._saved
        return [
            *(tensors[name] for name in own),
            *(inputs[name] for name in of_inputs),
            *constants.values(),
        ]

    def begin(self, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, int]]:
        """Return what `count` takes after the iteration: tensors, and their counts then."""
        with no_torch_function():  # an offloaded tensor stays where it is
            return [(tensors[name], version_of(tensors[name]) + more) for name, more in self._counted.items()]

    def count(self, versions: Iterable[tuple[Tensor, int]]) -> None:
        """Count the changes of an iteration that has run."""
        with no_torch_function():
            for tensor, version in versions:
                set_version(tensor, version)


def lasting(program: Program, storages: Container[int]) -> Lasting:
    """Return the tensors in these storages that are there before and after an iteration."""
    own, inputs = (
        [name for name, value in group.items() if program.values[value].storage in storages]
        for group in ({**program.parameters, **program.buffers}, program.inputs)
    )
    constants = {
        spelled(path): program.constants[value]
        for value, path in program.held.items()
        if program.values[value].storage in storages
    }
    return Lasting(own, inputs, constants)


def changed_residents(program: Program) -> set[int]:
    """Return the residents that operations change."""
    return {x for operation in program.operations for x in program.residents_changed(operation)}


def changed_by_others(program: Program) -> set[int]:
    """Return the residents that something else than an update changes: buffers, mostly."""
    return {
        x
        for operation in program.operations
        if not (updates_weights(operation) or adds_up(operation))
        for x in program.residents_changed(operation)
    }


def read_by_backward(program: Program) -> set[int]:
    """Return the storages that operations of backward read, and residents that get their values.

    A program has a tensor's values after a change in place as a tensor of its own, which is copied at last.
    """
    backward = (operation for operation in program.operations if operation.phase == Phase.BACKWARD)
    read = {x for operation in backward for x in operation.reads}
    copies = (operation for operation in program.operations if operation.call.target is _COPY)
    return read.union(*(operation.mutates for operation in copies if not read.isdisjoint(operation.reads)))


def _statistics(program: Program) -> set[int]:
    """Return the residents that batch norms alone change: their kernels do so without a count."""
    new = {
        value
        for operation in program.operations
        if operation.call.target in _STATISTICS
        for value in operation.call.outputs[-2:]
    }
    by_norms, by_others = set[int](), set[int]()
    for operation in program.operations:
        (by_norms if _copies(operation, new) else by_others).update(program.residents_changed(operation))
    return by_norms - by_others


def _copies(operation: Operation, values: Container[int | None]) -> bool:
    """Tell whether an operation copies one of these values."""
    call = operation.call
    return call.target is _COPY and isinstance(call.arguments[1], Ref) and call.arguments[1].value in values
