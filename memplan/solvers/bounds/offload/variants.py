"""Execution variants as the offloading bound sees them: where they run, what they need in each memory."""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.graph import Graph


@dataclass(frozen=True)
class BoundVariant:
    """An execution variant of an operation.

    seconds: on the CPU if `on_host`.
    device, host: the tensors that it reads or changes in that memory; `host` is the peers for spread ones.
    writes: those that it makes on the device.
    """

    seconds: float
    workspace: int
    on_host: bool
    device: frozenset[int]
    host: frozenset[int]
    writes: frozenset[int]


def variants_of(graph: Graph, operation: int) -> list[BoundVariant]:
    """Return the operation's execution variants, the baseline one first."""
    one = graph.operation(operation)
    touched = frozenset(graph.input_lists[operation])
    shares = frozenset(graph.on_peers(operation))
    made = frozenset(one.writes)
    variants = [BoundVariant(one.time, one.workspace, False, touched - shares, shares, made)]
    for mode in one.modes:
        at_host = touched if mode.on_host else shares.union(mode.reads_host)
        variants.append(
            BoundVariant(
                mode.time,
                0 if mode.on_host else mode.workspace,
                mode.on_host,
                touched - at_host,
                at_host,
                frozenset(mode.writes).difference(mode.made_on_host),
            )
        )
    return variants
