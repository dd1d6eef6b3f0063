"""The graph of a part of a program (updates/parts.py), with the costs of the whole's operations; only
those that the whole has not are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...graphs.graph import Graph, Phase
from ...graphs.machine import Machine, Peers
from ...program.graph import Cost, graph_of
from ...program.program import Program
from ...updates.parts import Part
from .profile import costs_of
from .rounds import Rounds


def graph_of_part(part: Part, whole: Program, graph: Graph) -> Graph:
    """Build the graph of a part, with costs from the whole's graph.

    whole: the program of which it is a part.
    graph: of the whole.
    """
    sizes: list[int] = graph.tensors.bytes.tolist()
    # What is measured are whole states: of shares the graph knows the bytes of one rank's.
    storages = [
        one._replace(bytes=max(one.bytes, size) if graph.tensors.spread else size)
        for one, size in zip(part.program.storages, sizes, strict=True)
    ]
    program = replace(part.program, storages=storages)
    # `is not`: a part shares the call objects of the whole.
    own = [k for k, o in enumerate(part.places) if program.operations[k].call is not whole.operations[o].call]
    rounds = Rounds(program, {}, own, keeps_integers=False)
    rounds.run()  # once: a part has the whole's schedule, which no time of its own changes
    costs = [_cost(graph, place) for place in part.places]
    for place, one in zip(own, rounds.measurements(), strict=True):
        (costs[place],) = costs_of(replace(program, operations=[program.operations[place]]), [one])
    made = graph_of(program, costs, name=graph.name, source=graph.source)
    return _spread_as(graph, made, part.places, own) if graph.tensors.spread else made


def _spread_as(whole: Graph, made: Graph, places: Sequence[int], own: Sequence[int]) -> Graph:
    """Spread a part's tensors over ranks as the whole's. own: its operations that the whole has not."""
    on_shares = whole.operations.phase[list(places)] == Phase.UPDATE
    share = 1 / ((whole.machine or Machine()).links.peers or Peers(1.0)).ranks
    measured = np.isin(np.arange(len(places)), list(own)) & on_shares
    operations = replace(
        made.operations,
        phase=np.where(on_shares, Phase.UPDATE, made.operations.phase).astype(np.uint8),
        time=np.where(measured, made.operations.time * share, made.operations.time),
        modes={o: modes for o, modes in made.operations.modes.items() if not on_shares[o]},
    )
    tensors = replace(
        made.tensors, bytes=whole.tensors.bytes, spread=whole.tensors.spread, shares=whole.tensors.shares
    )
    return replace(made, tensors=tensors, operations=operations)


def _cost(graph: Graph, operation: int) -> Cost:
    one = graph.operation(operation)
    host = one.modes[0] if one.modes else None
    if host is None:
        return Cost(one.time, one.workspace, launch_seconds=one.launch)
    return Cost(one.time, one.workspace, host.time, host.workspace, one.launch)
