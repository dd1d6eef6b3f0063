"""A program with other operations, numbered anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .program import Call, Operation, Program, Ref


def with_operations(
    program: Program, operations: Sequence[Operation], instead: Mapping[int, int] | None = None
) -> Program:
    """Return the program of these operations, without storages that none of them makes.

    operations: by the numbers of the program that is given.
    instead: values in a storage that is gone, and the value of the same form that each is replaced by.
    """
    instead = instead or {}
    gone = {x for operation in program.operations for x in operation.writes}
    gone -= {x for operation in operations for x in operation.writes}
    storages = {x: new for new, x in enumerate(x for x in range(len(program.storages)) if x not in gone)}
    kept = [v for v, value in enumerate(program.values) if value.storage in storages]
    values = {value: new for new, value in enumerate(kept)}
    left = list(storages)
    for value in instead:
        final = value
        while final in instead:  # a replacement may be replaced itself
            final = instead[final]
        values[value] = values[final]
        storages[program.values[value].storage] = storages[program.values[final].storage]

    def call(one: Call) -> Call:
        arguments, keywords = _refer(one.arguments, values), _refer(one.keywords, values)
        outputs = tuple(None if v is None else values.get(v) for v in one.outputs)
        return replace(one, arguments=arguments, keywords=keywords, outputs=outputs)

    def operation(one: Operation) -> Operation:
        reads, writes, mutates = (
            tuple(storages[x] for x in group) for group in (one.reads, one.writes, one.mutates)
        )
        return one._replace(call=call(one.call), reads=reads, writes=writes, mutates=mutates)

    def named(group: Mapping[Any, int]) -> dict[Any, int]:
        return {name: values[value] for name, value in group.items()}

    def one(value: int | None) -> int | None:
        return None if value is None else values[value]

    return replace(
        program,
        storages=[program.storages[x] for x in left],
        values=[program.values[v]._replace(storage=storages[program.values[v].storage]) for v in kept],
        operations=[operation(each) for each in operations],
        views={values[v]: call(each) for v, each in program.views.items() if v in values},
        parameters=named(program.parameters),
        buffers=named(program.buffers),
        inputs=named(program.inputs),
        constants={values[v]: tensor for v, tensor in program.constants.items()},
        held={values[v]: path for v, path in program.held.items()},
        states=named(program.states),
        loss=one(program.loss),
        outputs=named(program.outputs),
        gradients=named(program.gradients),
        input_gradients=named(program.input_gradients),
        norm=one(program.norm),
        infinite=one(program.infinite),
    )


def _refer(argument: Any, values: Mapping[int, int]) -> Any:
    """Return the argument with new numbers in its Refs."""
    if isinstance(argument, Ref):
        return Ref(values[argument.value])
    if isinstance(argument, Mapping):
        return {name: _refer(part, values) for name, part in argument.items()}  # pyright: ignore
    if isinstance(argument, tuple | list):
        return type(argument)(_refer(part, values) for part in argument)  # pyright: ignore
    return argument
