"""Programs as data: JSON can hold them, and reading one back runs no code.

A call is a list: the target, then its arguments. An operator is named by namespace, name and overload, an
update function by its name; a name stands for what is registered already, and nothing is imported for it. A
program that holds anything else (a random generator, a result of the module's own class, a tensor of a GPU)
can't be written, and a caller that would keep it traces anew.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ...graphs.graph import Kind, Phase
from ...program.outputs import NOTHING
from ...program.program import Call, Operation, Program, Ref, Setting, Storage, Value
from ...torch_support.torch_operators import OpOverload
from ...updates.rules import RULES

_SIMPLE = (type(None), bool, int, float, str)
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


class UnsavableError(Exception):
    """A program has a part that JSON can't hold."""


def program_to_document(program: Program) -> dict[str, Any]:
    """Return the document that `program_from_document` reads back. Raises UnsavableError."""
    left_out = (program.used, program.reads, program.host_part)
    if program.generators or program.output != NOTHING or any(part is not None for part in left_out):
        raise UnsavableError("it has parts of Python's")
    calls = {id(call): call for call in (*(one.call for one in program.operations), *program.views.values())}
    number = {key: place for place, key in enumerate(calls)}  # a call of several views stays one
    return {
        "device": str(program.device),
        "storages": [[one.name, one.bytes, int(one.kind), one.layer] for one in program.storages],
        "values": [[*one[:4], _name(one.dtype), str(one.device)] for one in program.values],
        "calls": [_call_row(call) for call in calls.values()],
        "operations": [
            [one.name, int(one.phase), one.layer, number[id(one.call)], *one[4:]]
            for one in program.operations
        ],
        "views": [[value, number[id(call)]] for value, call in program.views.items()],
        "constants": [[value, _written(tensor)] for value, tensor in program.constants.items()],
        "states": [[*key, value] for key, value in program.states.items()],
        "held": [[value, _written(path)] for value, path in program.held.items()],
        **{name: dict(getattr(program, name)) for name in _BY_NAME},
        **{name: getattr(program, name) for name in _SINGLE},
    }


def program_from_document(row: Mapping[str, Any]) -> Program:
    """Return the program of a document. Raises an error of any kind if it is none."""
    calls = [_call(*each) for each in row["calls"]]
    return Program(
        device=torch.device(row["device"]),
        storages=[Storage(name, size, Kind(kind), layer) for name, size, kind, layer in row["storages"]],
        values=[
            Value(
                storage=storage,
                shape=tuple(shape),
                strides=tuple(strides),
                offset=offset,
                dtype=_dtype(dtype),
                device=torch.device(device),
            )
            for storage, shape, strides, offset, dtype, device in row["values"]
        ],
        operations=[
            Operation(name, Phase(phase), layer, calls[call], *map(tuple, sets), is_random)  # pyright: ignore
            for name, phase, layer, call, *sets, is_random in row["operations"]
        ],
        views={value: calls[call] for value, call in row["views"]},
        constants={value: _read(tensor) for value, tensor in row["constants"]},
        states={(name, state): value for name, state, value in row["states"]},
        held={value: _read(path) for value, path in row["held"]},
        **{name: dict(row[name]) for name in _BY_NAME},
        **{name: row[name] for name in _SINGLE},
    )


_BY_NAME = ("parameters", "buffers", "inputs", "gradients", "input_gradients", "outputs")
_SINGLE = ("loss", "norm", "infinite", "compiling", "fingerprint", "trace_seconds")


def _call_row(call: Call) -> list[Any]:
    target = _written(call.target)
    return [target, _written(call.arguments), _written(dict(call.keywords)), call.outputs, call.several]


def _call(target: Any, arguments: Any, keywords: Any, outputs: list[int | None], several: bool) -> Call:
    return Call(_read(target), _read(arguments), _read(keywords), tuple(outputs), several)


def _written(value: Any) -> Any:
    """Return a value as JSON has it: simple ones as they are, others as lists that begin with their kind."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is Ref:
        return ["value", value.value]
    # torch.Size comes back as a tuple, which is equal to it.
    if kind in (tuple, list, torch.Size):
        return ["list" if kind is list else "tuple", *map(_written, value)]
    if kind is dict:
        return ["dict", *([_written(key), _written(one)] for key, one in value.items())]
    if kind is Setting:
        return ["setting", value.index, value.example]
    if isinstance(value, OpOverload):
        # An overload's text is namespace.name.overload.
        return ["operator", *str(value).split(".")]
    if kind in _CONSTANTS:
        return ["torch", _name(value)]
    if kind is torch.device:
        return ["device", str(value)]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if RULES.get(getattr(value, "__name__", "")) is value:
        return ["update", value.__name__]
    if kind is Tensor and value.device.type == "cpu" and value.layout == torch.strided:
        place = value.storage_offset(), value.shape, value.stride()
        return ["tensor", _name(value.dtype), *place, _bytes(value)]
    raise UnsavableError(f"it has a {kind.__name__}")


def _read(row: Any) -> Any:
    if type(row) is not list:
        return row
    kind, *parts = cast("list[Any]", row)
    return _READERS[kind](*parts)


def _operator(namespace: str, name: str, overload: str) -> OpOverload:
    found: Any = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    # getattr may find anything there: an operator alone may be called.
    if not isinstance(found, OpOverload):
        raise TypeError(f"{namespace}.{name}.{overload} is not an operator")
    return found


def _of_torch(name: str) -> Any:
    found: Any = getattr(torch, name)
    if type(found) not in _CONSTANTS:
        raise TypeError(f"torch.{name} is not a constant")
    return found


def _dtype(name: str) -> torch.dtype:
    return _of_torch(name)


def _tensor(dtype: str, offset: int, shape: list[int], strides: list[int], data: str) -> Tensor:
    raw = (
        # frombuffer refuses empty data, and wants memory that can be written.
        torch.frombuffer(bytearray(b64decode(data)), dtype=torch.uint8)
        if data
        else torch.empty(0, device="cpu")
    )
    return torch.empty(0, dtype=_dtype(dtype), device="cpu").set_(
        raw.untyped_storage(), offset, shape, strides
    )


def _bytes(tensor: Tensor) -> str:
    """Return the bytes of the tensor's whole storage: a view of it stays one."""
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
    return b64encode(flat.numpy().tobytes()).decode()


def _name(constant: Any) -> str:
    return str(constant).removeprefix("torch.")


_READERS: dict[str, Callable[..., Any]] = {
    "value": Ref,
    "tuple": lambda *parts: tuple(map(_read, parts)),
    "list": lambda *parts: list(map(_read, parts)),
    "dict": lambda *pairs: {_read(key): _read(one) for key, one in pairs},
    "setting": Setting,
    "operator": _operator,
    "torch": _of_torch,
    "device": torch.device,
    "complex": complex,
    "update": RULES.__getitem__,
    "tensor": _tensor,
}
"""Kinds of lists in a document, by their first word; no other is read."""
