"""Mixed precision of sharded training, as by FSDP2's MixedPrecisionPolicy: shares in float32, gathers in
bfloat16.

    w          gathered in bfloat16; its share is the float32 master, of twice the bytes
    w.master   that same share: no bytes in addition
    w.grad     summed up over the ranks in bfloat16, or in float32 (reduce_dtype):

    … B1 ─w.grad─▶        becomes        … B1 ─w.grad.local─▶ w/spread ─w.grad─▶

The graph has weights in bfloat16 and their masters among the optimizer's states (updates/masters.py). Linear
in the graph.

Reference: torch.distributed.fsdp.MixedPrecisionPolicy of PyTorch 2.13, and FSDPParamGroup, which casts
gradients in the copy into the buffer that is scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ..draft import Draft
from ..errors import InputError
from ..graph import Graph, Kind, Phase
from ..machine import Peers
from .gathering import with_gathers
from .sharding import sharded

MASTER = "master"
"""Name of the state that is a weight's float32 master."""

PARAM_DTYPES, REDUCE_DTYPES = ("bfloat16",), ("bfloat16", "float32")
"""Dtypes in which weights of float32 shares are gathered, and in which their gradients are summed up."""

_WIDER = 2
"""Bytes of a float32 number per byte of one in 16 bits."""


@dataclass(frozen=True)
class MixedPrecision:
    """A policy of FSDP2 with param_dtype bfloat16.

    cast_seconds: of a gradient's bytes the seconds in which it is cast to float32, in which ranks then sum it
        up; None: they sum it up in bfloat16.
    wide_shares: a rank's share of a gradient is in float32 in any case, as FSDP2 hands it to the optimizer.
    """

    cast_seconds: Callable[[int], float] | None = None
    wide_shares: bool = False


def sharded_in_mixed_precision(
    graph: Graph,
    peers: Peers,
    policy: MixedPrecision,
    weights: Collection[int] = (),
    *,
    offload_shares: bool = False,
) -> Graph:
    """Return the graph of one rank, as `sharded` does, by the policy.

    weights: frozen ones whose shares are in float32 too; those with masters have such shares in any case.
    offload_shares: as `with_gathers` does. A share on the host is float32, and is cast on the device, as by
        FSDP2's CPUOffloadPolicy.

    Raises InputError, one line, if no weight has a master, and as `sharded`.
    """
    index, names, kind = graph.tensor_index, graph.tensors.name, graph.tensors.kind
    masters: dict[int, int] = {}
    for x in np.flatnonzero(kind == Kind.PARAMETER).tolist():
        if (master := index.get(f"{names[x]}.{MASTER}")) is not None:
            masters[x] = master
    if not masters:
        raise InputError(
            f"{graph.name}: --param-dtype: its weights have no float32 masters: profile a model in bfloat16 "
            "with --optimizer and --master-weights"
        )
    updates: set[int] = {o for master in masters.values() for o in graph.mutators[master].tolist()}
    gradients: set[int] = {
        x for o in updates for x in graph.read_lists[o] if kind[x] == Kind.PARAMETER_GRADIENT
    }
    sizes = graph.tensors.bytes
    shares = {x: peers.share_of(_WIDER * int(sizes[x])) for x in {*masters, *weights}}
    shares |= dict.fromkeys(masters.values(), 0)
    if policy.cast_seconds is not None:
        graph = _with_float32_gradients(graph, gradients, policy.cast_seconds)
    elif policy.wide_shares:
        shares |= {x: peers.share_of(_WIDER * int(sizes[x])) for x in gradients}
    return with_gathers(graph, peers, shares) if offload_shares else sharded(graph, peers, shares)


def _with_float32_gradients(
    graph: Graph, gradients: Collection[int], cast_seconds: Callable[[int], float]
) -> Graph:
    """Return the graph in which gradients are cast to float32 when they are complete.

    Tensors keep their indices.
    """
    draft, operations = Draft(graph.name), graph.operations
    for x in range(len(graph.tensors)):
        name, size, kind, layer = graph.tensor(x)
        draft.tensor(name, _WIDER * size if x in gradients else size, kind, layer)
    local: dict[int, int] = {}
    complete: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for x in sorted(gradients):
        name, size, _kind, layer = graph.tensor(x)
        changing = [o for o in graph.mutators[x].tolist() if operations.phase[o] == Phase.BACKWARD]
        last[x] = max(*graph.producers[x].tolist(), *changing, -1)
        local[x] = draft.tensor(f"{name}.local", size, Kind.GRADIENT, layer)
        complete.setdefault(last[x], []).append(x)
    for o in range(len(graph.operations)):
        row = graph.operation(o)
        edges = {
            edge: tuple(local[x] if x in local and o <= last[x] else x for x in getattr(row, edge))
            for edge in ("reads", "writes", "mutates")
        }
        draft.operation(**row._replace(**edges)._asdict())
        for x in complete.get(o, ()):
            name, size, _kind, layer = graph.tensor(x)
            draft.operation(
                f"{name.removesuffix('.grad')}/spread",
                time=cast_seconds(size),
                reads=(local[x],),
                writes=(x,),
                phase=Phase.BACKWARD,
                layer=layer,
            )
    return draft.graph(graph.results, graph.machine, graph.source)
