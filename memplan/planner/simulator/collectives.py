"""Coalesced collectives: gathers, or scatters, that follow each other in the list as one collective.

A small tensor's gather takes little but the latency. If it comes directly after another gather, it joins that
one's collective: the latency is paid once, all of them wait for what each of them waits for, and all end
together. Only a tensor joins whose bytes take less than the latency that it saves (`Peers.joins`): the others
wait for it no longer than that. A large one would hold up all that is needed before it.
"""

from __future__ import annotations

from ...graphs.graph import Graph
from ...graphs.machine import Peers
from ..schedule.schedule import Schedule, Verb

_OFFLOAD, _PREFETCH = int(Verb.OFFLOAD), int(Verb.PREFETCH)


def joined_steps(graph: Graph, schedule: Schedule, peers: Peers | None) -> dict[int, int]:
    """Return per step that joins the collective of the steps before it the first of these, in list order."""
    spread, found = graph.tensors.spread, dict[int, int]()
    if peers is None or not spread:
        return found
    small = {
        kind: {x for x in spread if link.joins(float(graph.tensors.bytes[x]))}
        for kind, link in ((_OFFLOAD, peers.scatters), (_PREFETCH, peers))
    }
    first, verb, members = 0, -1, set[int]()
    for step, (kind, x, _where) in enumerate(schedule.rows()):
        if kind < _OFFLOAD or x not in spread:
            verb = -1
        # A tensor that is in already would be gathered twice at once: it begins a new collective.
        elif kind == verb and x in small[kind] and x not in members:
            found[step] = first
            members.add(x)
        else:
            first, verb, members = step, kind, {x}
    return found
