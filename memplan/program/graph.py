"""A program and what its operations cost, as a plan-graph/1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..graphs.draft import Draft
from ..graphs.graph import Graph, Mode
from ..graphs.machine import Machine
from ..graphs.transformations.updates import HOST_MODE
from .program import Program


class Cost(NamedTuple):
    """Cost of one operation.

    seconds: on the device.
    workspace_bytes: above its inputs and outputs while it runs.
    host_seconds, host_workspace_bytes: of its execution variant on the CPU, if it has one.
    launch_seconds: of the thread that issues it.
    """

    seconds: float
    workspace_bytes: int = 0
    host_seconds: float | None = None
    host_workspace_bytes: int = 0
    launch_seconds: float = 0.0


def graph_of(
    program: Program,
    costs: Sequence[Cost],
    *,
    name: str = "model",
    source: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    block_bytes: int = 1,
) -> Graph:
    """Build the graph: one tensor per storage, one operation per operation, under the same indices.

    costs: per operation.
    source: more about where it comes from, e.g. `model`, `entry`.
    block_bytes: size of which the planned device allocates whole multiples, if the program's own does not.
    """
    draft = Draft(name)
    handed_over = program.handed_over
    for storage in program.storages:
        size = -(-storage.bytes // block_bytes) * block_bytes
        draft.tensor(storage.name, size, storage.kind, storage.layer)
    for operation, cost in zip(program.operations, costs, strict=True):
        draft.operation(
            operation.name,
            time=cost.seconds,
            launch=cost.launch_seconds,
            workspace=cost.workspace_bytes,
            reads=operation.reads,
            writes=operation.writes,
            mutates=operation.mutates,
            phase=operation.phase,
            # What the caller holds is there to the end: it is not freed and recomputed.
            recompute=not operation.once and handed_over.isdisjoint(operation.writes),
            random=operation.random,
            layer=operation.layer,
            modes=_modes(cost),
            on_comm=operation.overlaps,
        )
    return draft.graph(program.results, machine, {**_source(program), **(source or {})})


def with_costs(graph: Graph, costs: Sequence[Cost], source: Mapping[str, Any], machine: Machine) -> Graph:
    """Return the graph of the same program at other costs, on another machine.

    source: entries that replace those of the graph's.
    """
    operations = replace(
        graph.operations,
        time=np.array([cost.seconds for cost in costs], np.float64),
        launch=np.array([cost.launch_seconds for cost in costs], np.float64),
        workspace=np.array([cost.workspace_bytes for cost in costs], np.int64),
        modes={row: modes for row, cost in enumerate(costs) if (modes := _modes(cost))},
    )
    made = replace(graph, operations=operations, source={**graph.source, **source}, machine=machine)
    # Costs alone differ, so what was computed of the structure stays valid.
    return made.share_structure(graph)


def _modes(cost: Cost) -> tuple[Mode, ...]:
    if cost.host_seconds is None:
        return ()
    seconds, workspace, launch = cost.host_seconds, cost.host_workspace_bytes, cost.launch_seconds
    return (Mode(HOST_MODE, seconds, workspace, (), on_host=True, launch=launch),)


def _source(program: Program) -> dict[str, Any]:
    return {
        "kind": "torch",
        "fingerprint": program.fingerprint,
        "torch": str(torch.__version__),
        "device": str(program.device),
        "compiling": program.compiling,
    }
