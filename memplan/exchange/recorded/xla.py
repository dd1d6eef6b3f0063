"""XLA's buffer assignments as recordings: what a program of JAX, TensorFlow or PyTorch/XLA takes of a device.

XLA writes them to the folder of `--xla_dump_to`. A program has its allocations from its begin to its end:

    parameters   named by the program's code, if it has names for them
    outputs      those that take no parameter's bytes
    constants
    temporaries  one arena, in which values that are never live together share bytes

Of the arena the owners are the values that are live when most of it is in use; the rest of it are gaps.
Allocations on the host (memory space 5) are left out.

    NAME-buffer-assignment.txt   allocations, and the values in each
    NAME-live-range.txt          when each value is live; older XLA may have it in the first file
    NAME-memory-usage-report.txt    the total, and rounded sizes
    NAME.txt                     the program: names and lines of code of the instructions

Reference: BufferAssignment::ToString, HloLiveRange::ToString and HloModule::ToString of OpenXLA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .owners import (
    ACTIVATIONS,
    BACKWARD,
    CONSTANTS,
    GAPS,
    OUTPUTS,
    PARAMETERS,
    RECOMPUTED,
    STATES,
    TEMPORARIES,
    WEIGHTS,
)
from .program_text import Instruction, Program, program_of
from .recording import XLA, Block, Recording

ASSIGNMENT, REPORT, RANGES = "-buffer-assignment.txt", "-memory-usage-report.txt", "-live-range.txt"
_HOST = 5
_MOST = 2**62
_ALLOCATION = re.compile(r"allocation (\d+): (?:0x[0-9a-f]+, )?size (\d+)(?:, color (\d+))?(.*)")
_VALUE = re.compile(
    r" value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))?(?: @-?\d+)?> \(size=(\d+),offset=(\d+)\): .*"
)
_TOTAL = re.compile(r"Total bytes(?: used)?: (\d+)")
_RANGE = re.compile(r"    (\S+?)(\{[\d,]*\}):(\d+)-(\d+)")


class Value(NamedTuple):
    """A value in an allocation. place: in a tuple, '{}' for a whole value."""

    name: str
    place: str
    size: int
    offset: int


class Allocation(NamedTuple):
    """Bytes of the program. what: XLA's words on it."""

    size: int
    color: int
    what: str
    values: list[Value]


def recording_of(path: Path, text: str, others: Mapping[str, str]) -> Recording:
    """Return the recording of a buffer assignment. Raises ValueError.

    others: texts of the files next to it, by the end of their names; the program's is '.txt'.
    """
    allocations = [*_allocations(text)]
    total = _TOTAL.search(text) or _TOTAL.search(others.get(REPORT, ""))
    if not allocations:
        raise ValueError("has no allocations: is the file whole?")
    if total is not None and total[1] != str(sum(one.size for one in allocations)):
        raise ValueError(f"its allocations do not sum to {total[1]} bytes, its total: is the file whole?")
    ranges = _ranges(others.get(RANGES) or text)
    program = program_of(others.get(".txt") or text)
    blocks = [block for one in allocations if one.color != _HOST for block in _blocks(one, ranges, program)]
    return Recording(path.name.removesuffix(ASSIGNMENT), blocks, source=XLA)


def _allocations(text: str) -> Iterator[Allocation]:
    there: Allocation | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _ALLOCATION.match(line):
            there = Allocation(_bytes(match[2], number), int(match[3] or 0), match[4], [])
            yield there
        elif line.startswith(" value: "):
            match = _VALUE.fullmatch(line)
            if match is None or there is None:
                raise ValueError(f"line {number}: not a value of an allocation")
            size, offset = _bytes(match[3], number), _bytes(match[4], number)
            if offset + size > there.size:
                raise ValueError(f"line {number}: the value is larger than its allocation")
            there.values.append(Value(match[1], match[2] or "{}", size, offset))
        elif line.startswith("Total bytes used:"):
            return


def _bytes(word: str, number: int) -> int:
    if len(word) > 18 or int(word) > _MOST:
        raise ValueError(f"line {number}: too many bytes")
    return int(word)


def _ranges(text: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the first and the last place at which each value is live."""
    found = dict[tuple[str, str], tuple[int, int]]()
    _head, _found, rest = text.partition("  BufferLiveRange:\n")
    for line in rest.splitlines():
        match = _RANGE.fullmatch(line)
        if match is None:
            break
        if max(len(match[3]), len(match[4])) > 9:
            raise ValueError(f"the live range {line.strip()[:80]} is too long")
        found[match[1], match[2]] = int(match[3]), int(match[4])
    return found


def _blocks(
    allocation: Allocation, ranges: Mapping[tuple[str, str], tuple[int, int]], program: Program
) -> Iterator[Block]:
    if not allocation.size:
        return
    values = allocation.values
    first = program.of(values[0].name) if values else Instruction()
    if ", parameter " in allocation.what:
        # named first by the entry computation, whose parameter it is
        name = first.path or values[0].name if values else "parameter"
        yield Block(allocation.size, -1, None, kind=_kind_of_parameter(name), name=name)
    elif "constant" in allocation.what:
        yield Block(allocation.size, -1, None, first.frames, CONSTANTS, name="constants")
    elif "preallocated-temp" not in allocation.what or not ranges:
        temporary = "maybe-live-out" not in allocation.what
        name = "temporaries: the dump has no live ranges" if temporary else _name(first, values)
        kind = TEMPORARIES if temporary else OUTPUTS
        frames = () if temporary else first.frames
        yield Block(allocation.size, -1, None, frames, kind, module=first.module, name=name)
    else:
        yield from _of_arena(allocation, ranges, program)


def _kind_of_parameter(name: str) -> str:
    """Return the kind by the name that the code has for it, like state.opt_state[0].mu['w']."""
    lower = name.lower()
    if "opt_state" in lower or "optimizer" in lower:
        return STATES
    named = "param" in lower and "[" in lower  # XLA's own names are like param.3
    return WEIGHTS if named or "weight" in lower else PARAMETERS


def _name(one: Instruction, values: Sequence[Value]) -> str:
    return one.path or (values[0].name if values else "")


def _of_arena(
    arena: Allocation, ranges: Mapping[tuple[str, str], tuple[int, int]], program: Program
) -> Iterator[Block]:
    """Yield what is live in an arena when most of it is in use, and the gaps."""
    place = _fullest(arena.values, ranges)
    live = [one for one in arena.values if _is_live(ranges.get((one.name, one.place)), place)]
    end = 0
    for one in sorted(live, key=lambda value: (value.offset, -value.size)):
        size = one.offset + one.size - max(one.offset, end)  # values that share bytes count once
        if size > 0:
            end, by = one.offset + one.size, program.of(one.name)
            yield Block(size, -1, None, by.frames, _kind(by.path), module=by.module, name=_name(by, [one]))
            arena = arena._replace(size=arena.size - size)
    if arena.size:
        yield Block(arena.size, -1, None, kind=GAPS, name="(gaps in the arena)")


def _is_live(span: tuple[int, int] | None, place: int) -> bool:
    return span is not None and span[0] <= place <= span[1]


def _fullest(values: Sequence[Value], ranges: Mapping[tuple[str, str], tuple[int, int]]) -> int:
    """Return the place at which the live values have the most bytes; those that share theirs count once."""
    spans = dict[tuple[int, int], list[tuple[int, int]]]()
    for one in values:
        if (span := ranges.get((one.name, one.place))) is not None and span[0] <= span[1]:
            spans.setdefault((one.offset, one.size), []).append(span)
    places = sorted({place for each in spans.values() for begin, end in each for place in (begin, end + 1)})
    number = {place: count for count, place in enumerate(places)}
    change = np.zeros(len(places) + 1, np.int64)
    for (_offset, size), there in spans.items():
        there.sort()
        merged = [there[0]]
        for begin, end in there[1:]:
            if begin <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], end)
            else:
                merged.append((begin, end))
        for begin, end in merged:
            change[number[begin]] += size
            change[number[end + 1]] -= size
    return places[int(np.cumsum(change)[:-1].argmax())] if places else 0


def _kind(path: str) -> str:
    """Return the kind of a value by JAX's names: jvp is forward, transpose backward."""
    if "rematted_computation" in path:
        return RECOMPUTED
    if "transpose(" in path:
        return BACKWARD
    return ACTIVATIONS if "jvp(" in path else TEMPORARIES
