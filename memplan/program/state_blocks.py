"""Optimizer states of which a program has blocks of rows: each block is a resident in a separate storage.

    states = {("embed.weight", "exp_avg[0:4096]"): 7, ("embed.weight", "exp_avg[4096:8192]"): 9, …}

The tensor of the optimizer is the whole state: `whole_states` says which residents are its blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from .program import Program, Value

Key = tuple[str, str]
"""A parameter and the name of a state."""

_BLOCK = re.compile(r"(.+)\[(\d+):(\d+)\]")


class WholeState(NamedTuple):
    """A state of the optimizer, contiguous, whose blocks of rows a program has.

    form: of all its rows, in the first block's storage.
    blocks: per resident value its rows, in order.
    """

    form: Value
    blocks: Mapping[int, slice]


def block_name(state: str, rows: slice) -> str:
    """Return the name of a block of a state."""
    return f"{state}[{rows.start}:{rows.stop}]"


def state_and_rows(name: str) -> tuple[str, slice | None]:
    """Return the state that a name of a program's states is of, and its rows; None for all of them."""
    matched = _BLOCK.fullmatch(name)
    return (matched[1], slice(int(matched[2]), int(matched[3]))) if matched else (name, None)


def whole_states(program: Program) -> dict[Key, WholeState]:
    """Return the states of which the program has blocks, by parameter and state."""
    found: dict[Key, dict[int, slice]] = {}
    for (parameter, name), value in program.states.items():
        state, rows = state_and_rows(name)
        if rows is not None:
            found.setdefault((parameter, state), {})[value] = rows
    return {key: WholeState(_whole(program, blocks), blocks) for key, blocks in found.items()}


def _whole(program: Program, blocks: Mapping[int, slice]) -> Value:
    first = program.values[next(iter(blocks))]
    *_others, last = blocks.values()
    return first._replace(shape=(last.stop, *first.shape[1:]))


def whole_by_block(program: Program) -> dict[int, WholeState]:
    """Return per resident value that is a block of a state that state."""
    return {value: whole for whole in whole_states(program).values() for value in whole.blocks}


def bytes_of_rows(form: Value, rows: slice) -> slice:
    """Return the bytes of a contiguous tensor in which rows lie."""
    each = prod(form.shape[1:]) * form.dtype.itemsize
    return slice(rows.start * each, rows.stop * each)
