"""Arguments and tensors as PyTorch's export schema writes them: one field, whose name is the type.

Reference: torch/_export/serde/schema.yaml, version 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ...graphs.files.fields import Row, mapping, sequence

SCALAR_TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
    33: torch.float8_e8m0fnu,
    34: torch.uint32,
    35: torch.uint64,
}
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
WRITTEN_AS_THEY_ARE = {"as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings"}


class UnknownNumberError(ValueError):
    """A number that the program computes, or a size that it leaves open."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the size {name!r} is not known: export with static shapes")
        self.name = name


def argument(written: object, nodes: Mapping[str, fx.Node]) -> Any:
    """Return an argument of a call as the file writes it.

    nodes: by name.

    Devices become the CPU, for which the trace is. Raises ValueError for sizes that are not known and for
    types of arguments other than simple ones and tensors.
    """
    row = mapping(written, "an argument")
    if len(row) != 1:
        raise ValueError(f"an argument must have one type, not {list(row)}")
    kind, value = next(iter(row.items()))
    if kind == "as_optional_tensor":
        return argument(value, nodes)
    if kind in WRITTEN_AS_THEY_ARE:
        return value
    if kind == "as_float":  # infinite ones are words
        return float(value)
    if kind == "as_floats":
        return [float(one) for one in sequence(value, kind)]
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return node_named(value, nodes)
    if kind in _SEVERAL:
        return [_SEVERAL[kind](part, nodes) for part in sequence(value, kind)]
    if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
        return argument(value, nodes)
    if kind == "as_complex":
        return complex(value["real"], value["imag"])
    if kind == "as_device":
        return torch.device("cpu")
    if kind in _TABLES and value in _TABLES[kind]:
        return _TABLES[kind][value]
    if kind == "as_name":
        raise UnknownNumberError(value)
    raise ValueError(f"an argument of type {kind} is not understood: {value!r}")


def node_named(written: object, nodes: Mapping[str, fx.Node]) -> fx.Node:
    """Return the node of the tensor that the file names. Raises ValueError for an unknown one."""
    name = str(mapping(written, "a tensor").get("name"))
    if name not in nodes:
        raise ValueError(f"the tensor {name!r} is used before it is made")
    return nodes[name]


def tensor(written: object) -> torch.Tensor:
    """Create a tensor of the shape, strides and dtype that a file gives; call it under a fake tensor mode."""
    row = mapping(written, "a tensor's form")
    dtype = SCALAR_TYPES.get(row.get("dtype", 0))
    if dtype is None:
        raise ValueError(f"a tensor of type {row.get('dtype')!r} is not understood")
    return torch.empty_strided(sizes(row, "sizes"), sizes(row, "strides"), dtype=dtype, device="cpu")


def sizes(form: Row, field: str) -> list[int]:
    """Return a tensor's sizes, or strides, as numbers. Raises ValueError if they are not known."""
    found = [mapping(one, field).get("as_int") for one in sequence(form.get(field), field)]
    if not all(isinstance(one, int) and one >= 0 for one in found):
        raise ValueError(f"{field} are not known numbers: export with static shapes")
    return [one for one in found if one is not None]


_SEVERAL: dict[str, Callable[[Any, Mapping[str, fx.Node]], Any]] = {
    "as_tensors": node_named,
    "as_optional_tensors": argument,
    "as_sym_ints": argument,
    "as_sym_bools": argument,
    "as_sym_floats": argument,
}
_TABLES: dict[str, dict[int, Any]] = {
    "as_scalar_type": SCALAR_TYPES,
    "as_memory_format": MEMORY_FORMATS,
    "as_layout": {7: torch.strided},  # others are refused
}
