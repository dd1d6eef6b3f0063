"""Logs of DTR's prototype: one line of JSON per call, as its simulator `simrd` reads them.

    CONSTANT, MEMORY              a tensor that is there before the iteration, and its bytes
    CALL, then MEMORY and ALIAS   a call with its nanoseconds, and for each result its bytes and the argument
                                  of which it is a view (-1: none)
    MUTATE                        a call that changes arguments in place
    COPY, COPY_FROM, RELEASE      Python's names of tensors: another one, one that is moved, one that ends
    ANNOTATE                      START of the iteration, and of BACKWARD

The graph is the simulator's problem:

- A view has 0 bytes. What reads it reads the tensor whose memory it shares, too.
- A change in place makes a new tensor of the same bytes, so that it can be recomputed.
- Tensors that still have a name at the end are results. Constants stay on the device.
- Backward begins at the annotation, or at the first call with "backward" in its name.

Reference: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, arXiv:2006.09616; simrd/parse in
github.com/uwsampl/dtr-prototype.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.files.documents import read_bytes
from ..graphs.files.fields import Row, mapping, sequence
from ..graphs.graph import Graph, Kind, Phase
from .formats import Options
from .nodes import NANOSECOND, whole
from .pickles import text_of

_MOST_BYTES = 2**30
_START = "START"


def read(path: Path, options: Options) -> Graph:
    """Return the graph of a log. Raises ValueError or InputError.

    A unit of time is a nanosecond unless the options say otherwise.
    """
    try:
        lines = read_bytes(path, _MOST_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(
            "is no log of DTR: not text, but maybe the archive of logs: unzip it first"
        ) from None
    # DTR's names of logs: the model, then the batch, the limit and the date. The prefix tells its `unet` from
    # others, as in the table of published results.
    name = f"dtr-{path.name.partition('-')[0].removesuffix('.log')}"
    log = _Log(Draft(name), options.time_unit or NANOSECOND)
    instructions = _iteration(list(enumerate(lines, start=1)))
    for number, row in instructions:
        try:
            log.take(row, instructions)
        except (ValueError, KeyError) as error:
            missing = isinstance(error, KeyError)
            text = f"no field or tensor {text_of(error.args[0])} before it" if missing else error
            raise ValueError(f"line {number}: {text}") from None
    return log.graph({"kind": "dtr", "file": path.name})


def _iteration(lines: list[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    """Yield the instructions after START, if there is one, with their lines' numbers."""
    rows = [(number, _instruction(number, line)) for number, line in lines if line.strip()]
    starts = [place for place, (_number, row) in enumerate(rows) if row.get("ANNOTATION") == _START]
    return iter(rows[starts[0] + 1 if starts else 0 :])


def _instruction(number: int, line: str) -> Row:
    try:
        return mapping(json.loads(line), f"line {number}")
    except (json.JSONDecodeError, RecursionError, InputError):
        raise ValueError(
            f"line {number} is no instruction of DTR's log, which is an object in JSON"
        ) from None


class _Log:
    """The tensors that Python's names stand for while the log is read.

    tensors: by name, the index of the tensor and that of the one whose memory it shares.
    names: per tensor, how many names it has.
    """

    def __init__(self, draft: Draft, unit: float) -> None:
        self.draft, self.unit = draft, unit
        self.tensors: dict[str, tuple[int, int]] = {}
        self.names: dict[int, int] = {}
        self.constants: set[int] = set()
        self.backward = False
        self.count = 0

    def take(self, row: Row, following: Iterator[tuple[int, Row]]) -> None:
        """Process an instruction, with the lines of its results."""
        kind = row.get("INSTRUCTION")
        if kind == "CONSTANT":
            name = _text(row["NAME"])
            if name in self.tensors:
                raise ValueError(f"{name} is there already")
            tensor = self.draft.tensor(name, _number(_next(following, "MEMORY", name), "MEMORY"), Kind.INPUT)
            self.constants.add(tensor)
            self._name(name, (tensor, tensor))
            self.count += 1
        elif kind == "CALL":
            self._call(row, following)
        elif kind == "MUTATE":
            self._mutate(row)
        elif kind in ("COPY", "COPY_FROM"):
            source = self.tensors[_text(row["SRC"])]
            if kind == "COPY_FROM":
                self._end(_text(row["DST"]))
            self._name(_text(row["DST"]), source)
        elif kind == "RELEASE":
            # DTR's logs release tensors from before START, too: the simulator ignores these.
            if _text(row["NAME"]) in self.tensors:
                self._end(_text(row["NAME"]))
        elif kind == "ANNOTATE":
            self.backward |= row.get("ANNOTATION") == "BACKWARD"
        else:
            raise ValueError(f"the instruction {text_of(kind)} is not known")

    def _call(self, row: Row, following: Iterator[tuple[int, Row]]) -> None:
        arguments, phase = self._arguments(row), self._phase(row)
        made: list[int] = []
        for name in map(_text, sequence(row["RESULT"], "RESULT")):
            size, alias = (_next(following, kind, name) for kind in ("MEMORY", "ALIAS"))
            of = -1 if alias == "-1" else _number(alias, "ALIAS")
            if of >= len(arguments):
                raise ValueError(f"{name} is a view of argument {of}, of {len(arguments)}")
            made.append(self._tensor(name, 0 if of >= 0 else _number(size, "MEMORY"), phase))
            self._name(name, (made[-1], arguments[of][1] if of >= 0 else made[-1]))
        self._operation(row, arguments, made, phase)

    def _mutate(self, row: Row) -> None:
        arguments, phase = self._arguments(row), self._phase(row)
        made: list[int] = []
        for place in sequence(row["MUTATE"], "MUTATE"):
            if not 0 <= whole(place, "an entry of MUTATE") < len(arguments):
                raise ValueError(f"argument {place} is changed, of {len(arguments)}")
            name = _text(row["ARGS"][place])
            made.append(self._tensor(name, self.draft.size_of(arguments[place][1]), phase))
            self._end(name)
            self._name(name, (made[-1], made[-1]))
        self._operation(row, arguments, made, phase)

    def _operation(self, row: Row, arguments: list[tuple[int, int]], made: list[int], phase: Phase) -> None:
        reads = [tensor for tensor, _memory in arguments] + [memory for _tensor, memory in arguments]
        self.draft.operation(
            f"{_text(row['NAME'])}/{self.count}",
            time=_number(row["TIME"], "TIME") * self.unit,
            reads=list(dict.fromkeys(reads)),
            writes=made,
            phase=phase,
        )
        self.count += 1

    def _arguments(self, row: Row) -> list[tuple[int, int]]:
        return [self.tensors[_text(name)] for name in sequence(row["ARGS"], "ARGS")]

    def _phase(self, row: Row) -> Phase:
        self.backward |= "backward" in _text(row["NAME"])
        return Phase.BACKWARD if self.backward else Phase.FORWARD

    def _tensor(self, name: str, size: int, phase: Phase) -> int:
        kind = Kind.GRADIENT if phase == Phase.BACKWARD else Kind.ACTIVATION
        # A changed tensor keeps its name in the log, so the number of the call tells them apart.
        return self.draft.tensor(f"{name}/{self.count}" if name in self.tensors else name, size, kind)

    def _name(self, name: str, tensor: tuple[int, int]) -> None:
        self.tensors[name] = tensor
        self.names[tensor[0]] = self.names.get(tensor[0], 0) + 1

    def _end(self, name: str) -> None:
        self.names[self.tensors[name][0]] -= 1

    def graph(self, source: Row) -> Graph:
        # Views that are kept, and the memory that they share.
        kept = {one for pair in self.tensors.values() if self.names[pair[0]] > 0 for one in pair}
        results = kept - self.constants
        return self.draft.graph(sorted(results), source=source)


def _next(following: Iterator[tuple[int, Row]], kind: str, name: str) -> Any:
    """Return what the next line says of a tensor. Raises ValueError if it says anything else."""
    row: Row = next(following, (0, cast(Row, {})))[1]
    if row.get("INSTRUCTION") != kind or row.get("NAME") != name:
        raise ValueError(f"{kind} of {name} does not follow")
    return row[kind]


def _number(value: object, what: str) -> int:
    """Return a number that the log has as text. Raises ValueError."""
    digits = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20
    return whole(int(value) if digits and isinstance(value, str) else value, what)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a name must be a text, not {text_of(value)}")
    return value
