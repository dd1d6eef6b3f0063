"""The least time of any schedule that only recomputes, by exhaustive search: for up to ten operations.

Written from the rules alone: a shortest path over states (which contributions are there, what has run), by
two lengths, of the runs and of their launches, of which the longer counts. Any order, any number of
recomputations, any deletes. Knows neither the simulator nor a solver.
"""

from __future__ import annotations

from heapq import heappop, heappush

from memplan.graphs.graph import Graph

State = tuple[int, int]
"""Contributions there (bits over all (tensor, producer) pairs), operations that have run (bits)."""

Lengths = tuple[float, float]


def optimal_time(graph: Graph, budget: int) -> float | None:
    """Seconds, or None where no schedule exists within `budget` bytes. Modes that use the host left out."""
    operations = [graph.operation(index) for index in range(len(graph.operations))]
    sizes = [int(size) for size in graph.tensors.bytes]
    resident = {x for x in range(len(sizes)) if graph.resident[x]}
    always = sum(sizes[x] for x in resident)
    bit: dict[tuple[int, int], int] = {}
    for index, operation in enumerate(operations):
        for x in operation.writes:
            bit[x, index] = 1 << len(bit)
    whole = {x: sum(b for (y, _index), b in bit.items() if y == x) for x in range(len(sizes))}
    movable = [x for x in range(len(sizes)) if x not in resident and whole[x]]

    def occupied(there: int) -> int:
        return always + sum(sizes[x] for x in movable if there & whole[x])

    def complete(there: int, x: int) -> bool:
        return x in resident or (there & whole[x]) == whole[x]

    variants = [[(o.time, o.launch, o.workspace, o.writes)] for o in operations]
    for index, operation in enumerate(operations):
        device = [mode for mode in operation.modes if not mode.on_host and not mode.reads_host]
        variants[index] += [(mode.time, mode.launch, mode.workspace, mode.writes) for mode in device]

    def on_its_side(index: int, ran: int) -> bool:
        """Every change of a tensor that it touches has happened if it stands before it in the file."""
        one = operations[index]
        touched = {*one.reads, *one.writes, *one.mutates}
        changes = [k for k, other in enumerate(operations) if k != index and touched & {*other.mutates}]
        return all((ran >> change & 1) == (change < index) for change in changes)

    everything = (1 << len(operations)) - 1
    best: dict[State, list[Lengths]] = {(0, 0): [(0.0, 0.0)]}
    queue: list[tuple[float, Lengths, State]] = [(0.0, (0.0, 0.0), (0, 0))]
    while queue:
        time, lengths, state = heappop(queue)
        if lengths not in best[state]:
            continue
        there, ran = state
        if ran == everything and all(complete(there, x) for x in graph.results):
            return time

        def reach(lengths: Lengths, state: State) -> None:
            known = best.setdefault(state, [])
            if not any(a <= lengths[0] and b <= lengths[1] for a, b in known):
                known[:] = [(a, b) for a, b in known if a < lengths[0] or b < lengths[1]]
                known.append(lengths)
                heappush(queue, (max(lengths), lengths, state))

        for x in movable:
            if there & whole[x]:
                reach(lengths, (there & ~whole[x], ran))
        for index, operation in enumerate(operations):
            if ran >> index & 1 and (not operation.recompute or operation.mutates):
                continue
            if not all(complete(there, x) for x in operation.reads + operation.mutates):
                continue
            if not on_its_side(index, ran):
                continue
            for seconds, launch, workspace, writes in variants[index]:
                remade = sum(sizes[x] for x in writes if there & bit[x, index])
                after = there
                for x in writes:
                    after |= bit[x, index]
                if occupied(after) + workspace + remade <= budget:
                    longer = lengths[0] + seconds, lengths[1] + launch
                    reach(longer, (after, ran | 1 << index))
    return None
