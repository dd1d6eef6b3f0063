"""The execution variants of an update on the CPU."""

from __future__ import annotations

from ....graphs.graph import Graph, Kind


def variants_on_host(graph: Graph, operation: int) -> list[tuple[float, int]]:
    """Return the variants on the host that do all that the operation does, as (seconds, number of the mode).

    The list is empty if it uses the batch, which stays on the device, or adds to what others produce there.
    """
    modes = graph.operations.modes.get(operation, ())
    written: list[int] = graph.operations.writes[operation].tolist()
    used = graph.input_lists[operation]
    if any(graph.tensors.kind[x] == Kind.INPUT for x in used):
        return []
    # A sum whose other addends are made on the device.
    if any(len(graph.producers[x]) > 1 for x in written):
        return []
    whole = (n for n, mode in enumerate(modes, start=1) if mode.on_host and len(mode.writes) == len(written))
    return [(modes[number - 1].time, number) for number in whole]
