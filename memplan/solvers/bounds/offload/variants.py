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
    variants = [
        BoundVariant(
            seconds=one.time,
            workspace=one.workspace,
            on_host=False,
            device=touched - shares,
            host=shares,
            writes=made,
        )
    ]
    for mode in one.modes:
        at_host = touched if mode.on_host else shares.union(mode.reads_host)
        variants.append(
            BoundVariant(
                seconds=mode.time,
                workspace=0 if mode.on_host else mode.workspace,  # bytes on the device
                on_host=mode.on_host,
                device=touched - at_host,
                host=at_host,
                writes=frozenset(mode.writes).difference(mode.made_on_host),
            )
        )
    return variants
