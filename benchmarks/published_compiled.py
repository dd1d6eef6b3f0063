"""Times of a graph whose program has fused kernels that CUDA graphs launch: `compiled: graphs` of a row.

The groups are those that `plan profile --compile` would try (memplan/profiling/fusion): no GPU is here to
measure which of them pay. A kernel passes once over what its group reads and writes. Its operations stay in
the graph, each with its share of the kernel's time, so that a schedule can recompute them; what they pass on
within the kernel counts as memory, which it would not be. No thread launches anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from memplan.graphs.graph import Graph
from memplan.profiling.fusion.folds import folds
from memplan.profiling.fusion.groups import Group, grouped, outside
from memplan.profiling.fusion.uses import Uses
from memplan.profiling.profile.roofline import Work, seconds
from memplan.torch_support.torch_operators import SOFTMAXES

aten: Any = torch.ops.aten
CROSS_ENTROPY = {*SOFTMAXES, aten.nll_loss_forward, aten.nll_loss_backward}
"""Operators that such programs compute in one kernel with the casts of the logits. memplan compiles none."""


def with_kernels(graph: Graph, program: Any, gpu: Any) -> Graph:
    """Return the graph with the times of fused kernels. program: what it was made of, in its order."""
    uses = Uses(program, folds(Uses(program, {})))
    targets = (operation.call.target for operation in program.operations)
    uses.fusible |= {
        place
        for place, target in enumerate(targets)
        if getattr(target, "overloadpacket", None) in CROSS_ENTROPY
    }
    at = {name: place for place, name in enumerate(graph.operations.name)}
    time = graph.operations.time.copy()
    for group in grouped(uses):
        places = [at[program.operations[member].name] for member in group.members]
        if len(places) > 1:
            taken = seconds(Work(0, sum(_passed(uses, group)), ""), gpu)
            time[places] *= min(taken / float(time[places].sum()), 1.0)
    operations = replace(graph.operations, time=time, launch=np.zeros_like(time))
    return replace(graph, operations=operations).share_structure(graph)


def _passed(uses: Uses, group: Group) -> Iterator[int]:
    """Yield the bytes of each storage that a group's kernel reads or writes."""
    unit = set(group.members)
    yield from outside(uses, unit).values()
    inside = {x for member in unit for x in uses.program.operations[member].writes}
    yield from (uses.sizes[x] for x in {x for member in unit for x in uses.reads[member]} - inside)
