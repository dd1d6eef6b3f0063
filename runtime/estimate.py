"""Estimate every operation of a program for a GPU that is not here: the graph's times by the roofline.

The program is that of PyTorch's CPU, traced on fake tensors. On the GPU itself PyTorch may choose other
operations: fused attention where there is dropout, cuDNN's batch normalisation. They take no more memory
than those counted here.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from .gpus import Gpu
from .program import Call, Program, values_read
from .program_graph import Cost
from .roofline import seconds, work_of
from .stand_ins import signature, substitute

CUDA_BLOCK_BYTES = 512
"""CUDA's caching allocator gives out whole blocks of this size."""


def estimate_program(program: Program, gpu: Gpu) -> list[Cost]:
    """Per operation its roofline time; no workspace, since that is not known."""
    known: dict[Hashable, Cost] = {}
    costs: list[Cost] = []
    for operation in program.operations:
        key = signature(program, operation.call)
        if key not in known:
            known[key] = Cost(estimate_call(program, operation.call, gpu))
        costs.append(known[key])
    return costs


def estimate_call(program: Program, call: Call, gpu: Gpu) -> float:
    """Seconds."""
    tensors = {value: _layout(program, value) for value in values_read(call)}
    arguments, keywords = substitute(call.arguments, tensors), substitute(call.keywords, tensors)
    results: list[Any] = [None if value is None else _layout(program, value) for value in call.outputs]
    work = work_of(call.target, arguments, keywords, tuple(results) if call.several else results[0])
    return seconds(work, gpu)


def _layout(program: Program, value: int) -> torch.Tensor:
    """A tensor of the value's shape, strides and type, without data."""
    form = program.values[value]
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
