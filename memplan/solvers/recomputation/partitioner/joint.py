"""A training graph as PyTorch's partitioner sees one: a node for each operation and each of its results."""

from __future__ import annotations

from dataclasses import dataclass

from ....graphs.graph import Graph, Kind, Phase
from .operators import GETITEM, operator

FAR = 10**9
"""The distance of what backward never needs."""

SOURCE = ""
"""The operator of what exists from the start."""


@dataclass(frozen=True)
class Joint:
    """The joint graph of forward and backward, its nodes in PyTorch's order.

    First comes what exists from the start, then operation by operation, each followed by its results if it
    has not exactly one. Updates are not among the nodes. What is neither `forward` nor `backward` is computed
    where it is used.

    operator: of operators.py.
    operation: −1 for what exists from the start.
    tensor: −1 for an operation that has not exactly one result.
    size: bytes.
    free: it costs nothing to save.
    reads, users: nodes.
    result: an update reads it, or it must exist at the end.
    fixed: it can't be recomputed.
    forward: it is needed for what forward gives.
    backward: it follows from the gradient of the loss.
    rank: among the nodes of forward.
    distance: steps to what is not forward.
    """

    operator: list[str]
    operation: list[int]
    tensor: list[int]
    size: list[int]
    free: list[bool]
    reads: list[list[int]]
    users: list[list[int]]
    result: list[bool]
    fixed: list[bool]
    forward: list[bool]
    backward: list[bool]
    rank: list[int]
    distance: list[int]

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def sources(self) -> list[int]:
        return [node for node, operation in enumerate(self.operation) if operation < 0]


def joint(graph: Graph, fixed: frozenset[int]) -> Joint:
    """Build the joint graph of forward and backward.

    fixed: operations that can't be recomputed, besides those that the graph forbids.
    """
    phase: list[int] = graph.operations.phase.tolist()
    writes = graph.operations.writes.lists()
    inputs, sizes = graph.input_lists, graph.tensors.bytes.tolist()
    producers = graph.producers.counts().tolist()
    chosen = [o for o in range(len(phase)) if phase[o] != Phase.UPDATE]
    operators, operations, tensors = list[str](), list[int](), list[int]()
    reads = list[list[int]]()
    of = dict[int, list[int]]()
    """Nodes, per tensor, that make it."""

    def add(name: str, operation: int, tensor: int, read: list[int]) -> int:
        operators.append(name)
        operations.append(operation)
        tensors.append(tensor)
        reads.append(read)
        return len(operators) - 1

    for x in dict.fromkeys(x for o in chosen for x in inputs[o] if not producers[x]):
        of[x] = [add(SOURCE, -1, x, [])]
    for o in chosen:
        read = [node for x in inputs[o] for node in of.get(x, ())]
        name = operator(graph.operations.name[o])
        if len(writes[o]) == 1:
            results = {writes[o][0]: add(name, o, writes[o][0], read)}
        else:
            whole = add(name, o, -1, read)
            results = {x: add(GETITEM, o, x, [whole]) for x in writes[o]}
        for x, node in results.items():
            of.setdefault(x, []).append(node)
    users: list[list[int]] = [[] for _node in operators]
    for node, read in enumerate(reads):
        for other in read:
            users[other].append(node)
    still, wanted = fixed | _fixed(graph), _wanted(graph)
    backward = _after_the_loss(graph, operations, reads, wanted)
    forward = _for_forward(
        graph, operations, tensors=tensors, reads=reads, backward=backward, still=still, wanted=wanted
    )
    ranks = [0] * len(operators)
    for rank, node in enumerate(node for node, needed in enumerate(forward) if needed):
        ranks[node] = rank
    distance = [0] * len(operators)
    for node in reversed(range(len(operators))):
        if forward[node]:
            distance[node] = min((distance[user] + 1 for user in users[node]), default=FAR)
    kinds, made = graph.tensors.kind.tolist(), list(zip(tensors, operations, strict=True))
    return Joint(
        operator=operators,
        operation=operations,
        tensor=tensors,
        size=[sizes[x] if x >= 0 else sum(sizes[y] for y in writes[o]) for x, o in made],
        free=[o < 0 and kinds[x] in (Kind.PARAMETER, Kind.BUFFER) for x, o in made],
        reads=reads,
        users=users,
        result=[x in wanted for x in tensors],
        fixed=[o in still for o in operations],
        forward=forward,
        backward=backward,
        rank=ranks,
        distance=[min(steps, FAR) for steps in distance],
    )


def _fixed(graph: Graph) -> frozenset[int]:
    """Return the operations that can't be recomputed.

    They are those that the graph forbids, that change tensors, or that contribute to a tensor of several
    producers.
    """
    several = graph.producers.counts() > 1
    writes = graph.operations.writes.lists()
    return frozenset(
        o
        for o, recomputed in enumerate(graph.operations.recompute.tolist())
        if not recomputed or graph.mutate_lists[o] or any(several[x] for x in writes[o])
    )


def _wanted(graph: Graph) -> frozenset[int]:
    """Return the tensors that updates read, or that must exist at the end."""
    phase: list[int] = graph.operations.phase.tolist()
    read = (graph.input_lists[o] for o, one in enumerate(phase) if one == Phase.UPDATE)
    return frozenset(graph.results).union(*read)


def _after_the_loss(
    graph: Graph, operations: list[int], reads: list[list[int]], wanted: frozenset[int]
) -> list[bool]:
    """Return the first backward operation and all that follows from it, and required backward operations.

    Required are those whose results are needed, or that can't be put off.
    """
    phase: list[int] = graph.operations.phase.tolist()
    random: list[bool] = graph.operations.random.tolist()
    still, writes = _fixed(graph), graph.operations.writes.lists()
    found, begun = [False] * len(operations), False
    for node, o in enumerate(operations):
        if o < 0:
            continue
        mine = phase[o] == Phase.BACKWARD
        stays = mine and (o in still or random[o] or not wanted.isdisjoint(writes[o]))
        # `begun`: the first backward operation stands for the gradient of the loss, from which the rest
        # follows.
        found[node] = stays or (mine and not begun) or any(found[other] for other in reads[node])
        begun = begun or mine
    return found


def _for_forward(
    graph: Graph,
    operations: list[int],
    tensors: list[int],
    reads: list[list[int]],
    backward: list[bool],
    still: frozenset[int],
    wanted: frozenset[int],
) -> list[bool]:
    """Return what forward computes: all that the loss, results and updates need, and what can't be put off.

    All that exists from the start is among it.
    """
    phase: list[int] = graph.operations.phase.tolist()
    random: list[bool] = graph.operations.random.tolist()
    found = [False] * len(operations)
    for node in reversed(range(len(operations))):
        o = operations[node]
        if backward[node]:
            continue
        # Random operations and those that cannot be recomputed must not wait for backward: their first run
        # keeps the traced order.
        if o < 0 or phase[o] == Phase.LOSS or o in still or random[o] or tensors[node] in wanted:
            found[node] = True
        if found[node]:
            for other in reads[node]:
                found[other] = True
    return found
