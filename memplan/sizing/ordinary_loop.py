"""The training loop that people have, as a graph: what "fits as it is" means.

    loss.backward()         all gradients are there when it ends
    optimizer.step()        by kernels for lists of tensors, PyTorch's default on CUDA, with copies
                            of all weights
    optimizer.zero_grad()   lets the gradients go

A plan's own graph updates each weight in backward, as soon as its gradient is there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..graphs.graph import Graph, Kind, Phase
from ..graphs.transformations.mixed_precision import MASTER
from ..graphs.transformations.order import in_order


def ordinary_loop(graph: Graph, copies: int) -> Graph:
    """Return the graph with all updates after backward, in one step.

    graph: with updates of weights, or without; then it stays as it is.
    copies: number of copies of the weights that the step holds besides.
    """
    operations = graph.operations
    is_update = operations.phase == Phase.UPDATE
    if not is_update.any():
        return graph
    order = [*np.flatnonzero(~is_update).tolist(), *np.flatnonzero(is_update).tolist()]
    changed = np.unique(
        [x for row in order[-int(is_update.sum()) :] for x in operations.mutates[row].tolist()]
    )
    weights = changed[graph.tensors.kind[changed] == Kind.PARAMETER]
    # The step takes a weight's float32 master in its place.
    index, names = graph.tensor_index, graph.tensors.name
    stepped = [index.get(f"{names[x]}.{MASTER}", x) for x in weights.tolist()]
    made = in_order(graph, order)
    workspace = made.operations.workspace.copy()
    first = int((~is_update).sum())
    # At the first update all gradients are there, and all copies that the step makes.
    workspace[first] = max(workspace[first], copies * int(graph.tensors.bytes[stepped].sum()))
    return replace(made, source=graph.source, operations=replace(made.operations, workspace=workspace))
