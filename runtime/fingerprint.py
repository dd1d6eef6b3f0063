"""What makes two traces the same program: everything but the values of weights and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import torch

from .names import full_name
from .program import Call, Program, Ref
from .torch_internals import FakeTensor


def fingerprint(program: Program) -> str:
    """`sha256:…` over calls, argument structure, shapes, strides, types, devices and parameter names.

    Constants that the code makes count by their values: they are part of it, like its numbers. Those that
    attributes of the module hold count by their form alone, like weights.
    """
    digest = sha256()
    for line in _lines(program):
        digest.update(line.encode())
        digest.update(b"\n")
    return f"sha256:{digest.hexdigest()}"


def _lines(program: Program) -> Iterator[str]:
    yield f"device {program.device.type} compiling {program.compiling}"
    for value in program.values:
        yield (
            f"value {value.storage} {value.shape} {value.strides} {value.offset} {value.dtype} "
            f"{value.device.type}"
        )
    for operation in program.operations:
        yield f"{operation.phase.word} {_call(operation.call)} {operation.writes} {operation.mutates}"
    for value, call in program.views.items():
        yield f"view {value} {_call(call)}"
    for group in (program.parameters, program.buffers, program.inputs, program.gradients):
        yield f"{list(group.items())!r}"
    if program.states:
        yield f"states {list(program.states.items())!r}"
    for value, constant in program.constants.items():
        content = program.held.get(value) or _content(constant)
        yield f"constant {value} {content}"
    yield f"loss {program.loss}"


def _call(call: Call) -> str:
    return f"{full_name(call.target)} {_text(call.arguments)} {_text(call.keywords)} {call.outputs}"


def _text(argument: Any) -> str:
    """Like repr, but the same in every process: the only objects in it are torch's own types."""
    if isinstance(argument, Ref):
        return f"%{argument.value}"
    if isinstance(argument, Mapping):
        return f"{{{', '.join(f'{name!r}: {_text(part)}' for name, part in argument.items())}}}"  # pyright: ignore
    if isinstance(argument, tuple | list):
        return f"[{', '.join(_text(part) for part in argument)}]"  # pyright: ignore
    if isinstance(argument, torch.device):
        return argument.type
    return repr(argument)


def _content(constant: torch.Tensor) -> str:
    if isinstance(constant, FakeTensor):
        return "unknown"
    data = constant.detach().cpu().contiguous().flatten().view(torch.uint8)
    return sha256(data.numpy().tobytes()).hexdigest()
