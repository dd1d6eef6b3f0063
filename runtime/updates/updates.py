"""Updates in a traced program: what graphs/transformations/updates.py does to a graph, with calls that can
run.

The states become residents, like the parameters; the gradients that are used up are no results any more.
Rules and places as there: `in-backward` right behind the last operation that contributes to the gradient or
reads the weight, by storage, so that tied and packed tensors are counted whole.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from ...graphs.graph import Kind, Phase
from ...graphs.transformations.updates import When
from ..program.names import Names
from ..program.program import Call, Operation, Program, Ref, Setting, Storage, Value
from ..storage.blocks import size_bytes
from ..torch_internals import FakeTensorMode
from .optimizers import Rule, setting

STEP = Setting(0, 2.0)
"""Which update of the weights it is, from 1; an example is one behind the first."""


def with_updates(program: Program, rules: Mapping[str, Rule], when: When) -> Program:
    """rules: by parameter. A gradient whose parameter has none stays a result."""
    writer = _Writer(program)
    updated = {name: rule for name, rule in rules.items() if name in program.gradients}
    places = _places(program, updated) if when == "in-backward" else {}
    behind: dict[int, list[Operation]] = {}
    for name, rule in updated.items():
        place = places.get(name, len(program.operations) - 1)
        behind.setdefault(place, []).append(writer.update(name, rule))
    operations: list[Operation] = []
    for index, operation in enumerate(program.operations):
        operations += [operation, *behind.get(index, ())]
    left = {name: value for name, value in program.gradients.items() if name not in updated}
    return replace(
        program,
        storages=writer.storages,
        values=writer.values,
        operations=operations,
        gradients=left,
        states=writer.states,
    )


def updates_weights(operation: Operation) -> bool:
    """Whether it is one of these updates: of all that changes in place only they have settings."""
    return STEP in operation.call.arguments


def _places(program: Program, names: Iterable[str]) -> dict[str, int]:
    """Per parameter the last operation that contributes to its gradient or reads it."""
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    for index, operation in enumerate(program.operations):
        made.update(dict.fromkeys(operation.writes, index))
        read.update(dict.fromkeys(operation.reads, index))
    storage = {name: program.values[program.parameters[name]].storage for name in names}
    gradient = {name: program.values[program.gradients[name]].storage for name in names}
    return {name: max(made[gradient[name]], read.get(storage[name], -1)) for name in storage}


class _Writer:
    """Appends states to the program's storages and values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.storages = list(program.storages)
        self.values = list(program.values)
        self.states: dict[tuple[str, str], int] = {}
        self.names = Names()
        for storage in program.storages:
            self.names.unique(storage.name)

    def update(self, name: str, rule: Rule) -> Operation:
        weight, gradient = self.program.parameters[name], self.program.gradients[name]
        states = [self._state(name, state) for state in rule.states]
        settings = (setting(rule.group, "lr", 1e-3), STEP)
        arguments = (*map(Ref, (weight, gradient, *states)), *settings)
        changed = dict.fromkeys(self.values[value].storage for value in (weight, *states))
        layer = self.storages[self.values[weight].storage].layer
        call = Call(rule.target, arguments, rule.keywords, (), several=False)
        reads = (self.values[gradient].storage,)
        return Operation(f"{name}/update", Phase.UPDATE, layer, call, reads, (), tuple(changed), random=False)

    def _state(self, name: str, state: str) -> int:
        """A new resident of the parameter's form, as `torch.zeros_like` makes it."""
        form = self.program.values[self.program.parameters[name]]
        layer = self.program.storages[form.storage].layer
        with FakeTensorMode():
            weight = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
            made = torch.zeros_like(weight)
        size = size_bytes(made, self.program.device)
        self.storages.append(Storage(self.names.unique(f"{name}.{state}"), size, Kind.OPTIMIZER_STATE, layer))
        strides = tuple(made.stride())
        self.values.append(Value(len(self.storages) - 1, form.shape, strides, 0, form.dtype, form.device))
        self.states[name, state] = len(self.values) - 1
        return len(self.values) - 1
