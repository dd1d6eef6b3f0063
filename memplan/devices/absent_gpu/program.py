"""The program of a trace for an absent GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...program.program import Call, Program
from ...torch_support.torch_trees import tree_map
from .devices import shown


def program_on_cuda(program: Program) -> Program:
    """Return the program of a trace for an absent GPU with CUDA's device throughout."""
    return replace(
        program,
        device=shown(program.device),
        values=[value._replace(device=shown(value.device)) for value in program.values],
        operations=[one._replace(call=_on_cuda(one.call)) for one in program.operations],
        views={value: _on_cuda(call) for value, call in program.views.items()},
    )


def _on_cuda(call: Call) -> Call:
    def device(argument: Any) -> Any:
        return shown(argument) if isinstance(argument, torch.device) else argument

    return replace(call, arguments=tree_map(device, call.arguments), keywords=tree_map(device, call.keywords))
