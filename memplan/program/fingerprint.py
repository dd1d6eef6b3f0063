"""The fingerprint of a program: two traces of one program have the same. Everything counts but the values
of weights and inputs, and the order in which independent operations were traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from .call_text import call_text, content
from .program import Program


def fingerprint(program: Program) -> str:
    """Return `sha256:…` over calls, argument structure, shapes, strides, dtypes, devices and parameter
    names.

    Offsets of inputs do not count: batches are slices that begin anywhere in their memory.
    Constants that the code makes count by their values: they are part of it, like its numbers. Those that
    attributes of the module hold count by their form alone, like weights. Names stand for operations and
    storages: they do not depend on the order in which they were traced (canonical.py), except that of
    operations that draw random numbers, which counts.
    """
    digest = sha256()
    # Sorted: independent operations come in any order, and names say what reads what.
    for line in (*_head(program), *sorted(_lines(program))):
        digest.update(line.encode())
        digest.update(b"\n")
    return f"sha256:{digest.hexdigest()}"


def _head(program: Program) -> Iterator[str]:
    yield f"device {program.device.type} compiling {program.compiling}"
    yield "no loss" if program.loss is None else f"loss {_value(program, program.loss)}"
    groups = (program.parameters, program.buffers, program.inputs, program.gradients)
    for group in (*groups, {f"{name} {state}": v for (name, state), v in program.states.items()}):
        yield ", ".join(f"{name}: {_value(program, value)}" for name, value in group.items())
    for what, group in (("outputs", program.outputs), ("inputs' gradients", program.input_gradients)):
        if group:
            yield f"{what} {', '.join(f'{n}: {_value(program, v)}' for n, v in group.items())}"
    paths = {id(generator): f" from {path}" for path, generator in program.generators.items()}
    drawing = (operation for operation in program.operations if operation.random)
    draws = (f"{one.name}{paths.get(id(one.call.generator), '')}" for one in drawing)
    yield f"draws {', '.join(draws)}"


def _lines(program: Program) -> Iterator[str]:
    def value(index: int) -> str:
        return _value(program, index)

    for operation in program.operations:
        changed = [program.storages[storage].name for storage in operation.mutates]
        results = [None if output is None else value(output) for output in operation.call.outputs]
        call = call_text(operation.call, value)
        yield f"{operation.name} {operation.phase.word} {call} {results} {changed}"
    for index, call in program.views.items():
        yield f"view {value(index)} {call_text(call, value)} {call.outputs.index(index)}"
    for index, constant in program.constants.items():
        yield f"constant {value(index)} {program.held.get(index) or content(constant)}"


def _value(program: Program, index: int) -> str:
    """Describe a value by the name of its storage and its position in that."""
    storage, shape, strides, offset, dtype, device = program.values[index]
    offset -= program.input_begins.get(storage, 0)
    return f"{program.storages[storage].name} {shape} {strides} {offset} {dtype} {device.type}"
