"""Rows of the table of a GPU's operations: which model, in which precision, on which compute capability, and
what the trace of its iteration has.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from memplan.graphs.graph import Phase
from memplan.model.iteration import Iteration
from memplan.program.program import Program

from .models import MODELS

CAPABILITIES = ("9.0", "8.6", "7.5", "8.0", "7.0", "10.0", "8.9", "12.0")
WHOLE = ("9.0", "8.6")
"""Capabilities with a row for each precision with and without dropout; the others have half of them."""
PRECISIONS = ("float32", "bfloat16", "autocast-bfloat16", "autocast-float16")
DROPOUTS = (0.0, 0.1)
WITHOUT_DROPOUT = ("resnet", "resnet-channels-last", "convnext")


BLOCK = 512
"""Bytes of which CUDA's allocator hands out whole multiples."""


class Row(NamedTuple):
    """A model on a GPU.

    operations: number of them.
    saved: bytes that forward leaves for backward.
    counts: hash of how often each operator runs.
    fingerprint: of the program.
    fault: a line, where there is no program.
    """

    capability: str
    model: str
    precision: str
    dropout: float
    operations: int = 0
    saved: int = 0
    counts: str = ""
    fingerprint: str = ""
    fault: str = ""

    @property
    def key(self) -> tuple[str, str, str, float]:
        return self[:4]


def questions(capabilities: Iterable[str] = CAPABILITIES) -> Iterator[Row]:
    """Yield all rows without their answers."""
    for capability in capabilities:
        for model in MODELS:
            for precision in PRECISIONS:
                usual = 0.1 if precision in ("float32", "autocast-bfloat16") else 0.0
                for dropout in DROPOUTS if capability in WHOLE else (usual,):
                    if not (dropout and model in WITHOUT_DROPOUT and capability in WHOLE):
                        yield Row(capability, model, precision, 0.0 if model in WITHOUT_DROPOUT else dropout)


def iteration(row: Row) -> Iteration:
    """Build the iteration of a row."""
    module, inputs = MODELS[row.model](row.dropout)
    autocast, dtype = row.precision.startswith("autocast"), getattr(torch, row.precision.split("-")[-1])
    if not autocast:
        module = module.to(dtype)
        floating = (name for name, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point())
        inputs.update({name: inputs[name].to(dtype) for name in list(floating)})
    return Iteration(module, inputs, autocast=dtype if autocast else None)


def answered(row: Row, traced: Callable[[], Program]) -> Row:
    """Return the row with what the trace has, or with the line that says why there is none."""
    try:
        program = traced()
    except Exception as error:
        return row._replace(fault=f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])
    return row._replace(
        operations=len(program.operations),
        saved=saved_bytes(program),
        counts=sha256(repr(sorted(operators(program).items())).encode()).hexdigest()[:16],
        fingerprint=program.fingerprint.removeprefix("sha256:")[:16],
    )


def operators(program: Program) -> Counter[str]:
    targets: list[Any] = [one.call.target for one in program.operations]
    return Counter(getattr(target, "__name__", str(target)) for target in targets)


def saved_bytes(program: Program) -> int:
    """Return the bytes of what forward makes and backward reads."""
    made: set[int] = set()
    read: set[int] = set()
    for one in program.operations:
        if one.phase in (Phase.FORWARD, Phase.LOSS):
            made.update(one.writes)
        else:
            read.update(one.reads)
    return sum(-(-program.storages[storage].bytes // BLOCK) * BLOCK for storage in made & read)


def read_rows(path: Path) -> list[Row]:
    with path.open() as file:
        rows: list[Any] = list(csv.DictReader(file, delimiter="\t"))
    numbers = {"dropout": float, "operations": int, "saved": int}
    return [Row(**{name: numbers.get(name, str)(text) for name, text in row.items()}) for row in rows]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
