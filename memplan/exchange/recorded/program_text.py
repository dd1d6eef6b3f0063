"""The text of an XLA program: for each instruction the code that it is of.

    %dot.3 = f32[8,4] dot(%x, %w), metadata={op_name="jit(f)/jvp(Net)/Dense_0/dot_general" stack_frame_id=4}

`op_name` is the path of the operation in the program, with names of modules if the code has them. Its line is
`source_file` and `source_line`, or in newer XLA a frame of the tables at the text's begin.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .recording import Frame

_INSTRUCTION = re.compile(r"\s*(?:from instruction: )?(?:ROOT )?%?([\w.\-]+) = ")
_METADATA = re.compile(r"\bmetadata=\{")
_PATH = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"\bsource_line=(\d{1,9})\b")
_FRAME = re.compile(r"\bstack_frame_id=(\d{1,9})\b")
_NAMED = re.compile(r'(\d{1,9}) "((?:[^"\\]|\\.)*)"')
_LOCATION = re.compile(r"(\d{1,9}) \{file_name_id=(\d{1,9}) function_name_id=(\d{1,9}) line=(\d{1,9})\b.*\}")
_STACK = re.compile(r"(\d{1,9}) \{file_location_id=(\d{1,9})(?: parent_frame_id=(\d{1,9}))?\}")
_DEEPEST = 200
_WRAPPED = re.compile(r"(?:\w+\()+([^()]*)\)+")
_CONTROL = ("", "main", "while", "body", "cond", "closed_call", "checkpoint", "rematted_computation")
"""Parts of a path that name no module."""


class Instruction(NamedTuple):
    """The code of an instruction.

    path: of the operation. frames: innermost first. module: names of its modules.
    """

    path: str = ""
    frames: tuple[Frame, ...] = ()
    module: str = ""


class Program:
    """The instructions of a program by name."""

    def __init__(self, instructions: dict[str, str], stacks: dict[int, tuple[Frame, ...]]) -> None:
        self._instructions, self._stacks = instructions, stacks

    def of(self, name: str) -> Instruction:
        metadata = self._instructions.get(name, "")
        match = _PATH.search(metadata)
        path = "" if match is None else match[1].replace('\\"', '"').replace("\\'", "'")
        frames = self._frames(metadata, path.rpartition("/")[2])
        return Instruction(path, frames, _module(path))

    def _frames(self, metadata: str, operation: str) -> tuple[Frame, ...]:
        file, line, frame = (pattern.search(metadata) for pattern in (_FILE, _LINE, _FRAME))
        if file is not None and line is not None:
            return (Frame(file[1], int(line[1]), operation),)
        return () if frame is None else self._stacks.get(int(frame[1]), ())


def program_of(text: str) -> Program:
    """Return the program of a text; instructions without metadata are left out."""
    instructions = dict[str, str]()
    for line in text.splitlines():
        if (begin := _METADATA.search(line)) and (match := _INSTRUCTION.match(line)):
            instructions.setdefault(match[1], line[begin.end() :])
    return Program(instructions, _stacks(text))


def _stacks(text: str) -> dict[int, tuple[Frame, ...]]:
    """Return the frames of each number, innermost first, of the tables before the program."""
    tables: dict[str, list[str]] = {}
    for part in text[: text.find("\nENTRY ")].split("\n\n"):
        head, *lines = part.strip().splitlines() or [""]
        tables.setdefault(head, lines)
    files, functions = (
        {int(match[1]): match[2] for line in tables.get(head, ()) if (match := _NAMED.fullmatch(line))}
        for head in ("FileNames", "FunctionNames")
    )
    places = dict[int, Frame]()
    for line in tables.get("FileLocations", ()):
        if match := _LOCATION.fullmatch(line):
            number, file, function, at = map(int, match.groups())
            places[number] = Frame(files.get(file, ""), at, functions.get(function, ""))
    parents = dict[int, tuple[int, int]]()
    for line in tables.get("StackFrames", ()):
        if match := _STACK.fullmatch(line):
            parents[int(match[1])] = int(match[2]), int(match[3] or 0)
    return {number: tuple(_stack(number, parents, places)) for number in parents}


def _stack(number: int, parents: dict[int, tuple[int, int]], places: dict[int, Frame]) -> list[Frame]:
    found = list[Frame]()
    while number in parents and len(found) < _DEEPEST:
        location, parent = parents[number]
        if location in places:
            found.append(places[location])
        if parent == number:  # the outermost is its own parent
            break
        number = parent
    return found


def _module(path: str) -> str:
    """Return the modules of jit(step)/transpose(jvp(Net))/Dense_0/dot_general: Net/Dense_0."""
    parts = list[str]()
    for part in path.split("/")[:-1]:
        if part.startswith(("jit(", "pjit(", "jit_")):
            continue
        match = _WRAPPED.fullmatch(part)
        name = part if match is None else match[1]
        if name not in _CONTROL:
            parts.append(name)
    return "/".join(parts)
