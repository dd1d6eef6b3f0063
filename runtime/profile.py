"""Measure every operation of a traced program: the graph's times and workspaces.

Each distinct call (operation, shapes, strides, types, other arguments) is measured once, on stand-ins for its
inputs, so that profiling takes far less memory than the iteration it profiles, and seconds where the
iteration takes seconds: GPT-2 has some 600 operations of which about 90 are distinct.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .measure import Measurement, measure
from .program import Operation, Program
from .program_graph import Cost
from .randomness import restore_generator, save_generator
from .stand_ins import StandIns, signature

Progress = Callable[[int, int, str], None]
"""Called with how many operations are done, of how many, and the name of the last."""


def measure_program(
    program: Program, residents: Mapping[int, torch.Tensor], progress: Progress | None = None
) -> list[Measurement]:
    """Per operation its measurement; equal signatures share one.

    residents: the tensors of inputs, buffers and constants, by value. They and the random generator stay
    as they are.
    """
    stand_ins = StandIns(program, residents)
    known: dict[Hashable, Measurement] = {}
    measured: list[Measurement] = []
    state = save_generator(program.device)
    try:
        with torch.no_grad():
            for operation in program.operations:
                key = signature(program, operation.call)
                if key not in known:
                    known[key] = measure(stand_ins.calls(), str(program.device))
                measured.append(known[key])
                stand_ins.advance()
                if progress is not None:
                    progress(len(measured), len(program.operations), operation.name)
    finally:
        restore_generator(program.device, state)
    return measured


def costs_of(program: Program, measured: Sequence[Measurement]) -> list[Cost]:
    """What an operation takes beside its outputs is its workspace."""

    def outputs(operation: Operation) -> int:
        return sum(program.storages[storage].bytes for storage in operation.writes)

    return [
        Cost(one.seconds, max(0, one.peak_bytes - outputs(operation)))
        for operation, one in zip(program.operations, measured, strict=True)
    ]


def quality(measured: Sequence[Measurement]) -> dict[str, Any]:
    """How far the times can be trusted, for the graph's `source`.

    signatures: the distinct calls. spread: interquartile range over median, the median over the distinct
    calls, and the mean over operations weighted by their time.
    """
    if not measured:
        return {"signatures": 0, "spread": 0.0, "spread_by_time": 0.0}
    distinct = list({id(one): one for one in measured}.values())
    seconds = [one.seconds for one in measured]
    return {
        "signatures": len(distinct),
        "spread": round(float(np.median([one.spread for one in distinct])), 4),
        "spread_by_time": round(float(np.average([one.spread for one in measured], weights=seconds)), 4),
    }
