"""The H-graph of a cluster (thesis, definition 3.2.2): its children's passes and the values between them.

Nodes (cNodes) are in the order in which they first run: the forward passes of the children, the loss, the
backward passes in the cluster's order (the thesis: from the last child to the first), and what follows. A
child with options is a pair of nodes; one without is taken apart, a node per operation. Values (aNodes) are
between nodes: tensors that the same passes read and make, at the same moments, are one value. In a cluster
the loss stands for all that happens between its forward and its backward part: it needs the cluster's forward
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....planner.schedule.sequence import Run
from ..hierarchy.option import Advance, Option, forward_outputs, lasting
from ..hierarchy.passes import Pass, PassMoment, Tensors, bytes_of, pass_of
from ..hierarchy.piece import Piece, Subgraph, part


@dataclass(frozen=True)
class NodeRun:
    """A way to run a node.

    Tensors and operations are those of the cluster (`piece`); after `h_graph`, tensors are values.

    option: the phantom that it makes (forward) or uses (backward).
    saved: its bytes.
    """

    run: Pass
    option: int | None = None
    saved: int = 0


@dataclass(frozen=True)
class Node:
    """A node of an H-graph.

    first, recompute, turn: the choices at its first run, at later ones, and in the stage of its own backward.
    pair: the number of the child with options.
    leaves: bytes of results that stay when it has run.
    until: it is recomputed no later than in the stage of this node; None: at any time.
    """

    first: tuple[NodeRun, ...]
    recompute: tuple[NodeRun, ...] = ()
    turn: tuple[NodeRun, ...] = ()
    pair: int | None = None
    leaves: int = 0
    until: int | None = None


@dataclass(frozen=True)
class HGraph:
    """An H-graph: nodes, and the values between them.

    loss: the loss node's index.
    sizes: per value, bytes.
    lasts: per value, whether it must last to the end.
    producers: per value, the nodes that contribute to it.
    backward_of: child -> its backward node.
    """

    nodes: tuple[Node, ...]
    loss: int
    sizes: tuple[int, ...]
    lasts: tuple[bool, ...]
    producers: tuple[tuple[int, ...], ...]
    backward_of: dict[int, int]


@dataclass(frozen=True)
class Child:
    """A child of a cluster: its operations and tensors in the cluster, and how it can be run.

    Without options it is taken apart.
    """

    part: Subgraph
    options: tuple[Option, ...] = ()
    advance: Advance | None = None


def h_graph(
    piece: Piece, children: Sequence[Child], middle: Sequence[int] = (), after: Sequence[int] = ()
) -> HGraph:
    """Build the H-graph of a cluster.

    middle: operations of the loss (of the whole graph).
    after: what runs after all backward parts.
    """
    nodes: list[Node] = []
    for number, child in enumerate(children):
        nodes += _forward_nodes(piece, number, child)
    loss = len(nodes)
    nodes.append(_loss_node(piece, middle))
    later = [row for number, child in enumerate(children) for row in _backward_nodes(piece, number, child)]
    # In the cluster's order: a child's backward node comes where its first operation does.
    later.sort(key=lambda row: row[0])
    backward_of = {node.pair: k for k, (_o, node) in enumerate(later, len(nodes)) if node.pair is not None}
    nodes += [node for _operation, node in later]
    if after:
        nodes.append(_lone(piece, part(piece, (), after)))
    return _with_values(piece, _limited(piece, nodes), loss, backward_of)


def _limited(piece: Piece, nodes: Sequence[Node]) -> list[Node]:
    node_of = {o: k for k, node in enumerate(nodes) for o, _mode in node.first[0].run.runs}
    limits = [
        [node_of[piece.until[o]] for o in operations if piece.until[o] in node_of]
        for node in nodes
        for operations in [{o for choice in node.recompute for o, _mode in choice.run.runs}]
    ]
    return [replace(node, until=min(row, default=None)) for node, row in zip(nodes, limits, strict=True)]


def _forward_nodes(piece: Piece, number: int, child: Child) -> list[Node]:
    inner, count = child.part, child.part.piece.forward
    if not count:
        return []
    if not child.options:
        return [_single(piece, o, forward=True) for o in inner.operations[:count]]
    save = [(o.first, o.recompute, o.turn, o.saved) for o in child.options]
    first = [NodeRun(_outer(piece, inner, f), index, saved) for index, (f, _a, _t, saved) in enumerate(save)]
    recompute = [
        NodeRun(_outer(piece, inner, a), index, saved) for index, (_f, a, _t, saved) in enumerate(save)
    ]
    turn = [NodeRun(_outer(piece, inner, t), index, saved) for index, (_f, _a, t, saved) in enumerate(save)]
    advance = child.advance
    if advance is not None:
        first.append(NodeRun(_outer(piece, inner, advance.first)))
        recompute.append(NodeRun(_outer(piece, inner, advance.recompute)))
    return [Node(tuple(first), tuple(recompute), tuple(turn), number)]


def _backward_nodes(piece: Piece, number: int, child: Child) -> list[tuple[int, Node]]:
    """Return the child's backward nodes, each with its first operation."""
    inner, own = child.part, child.part.piece
    backward = inner.operations[own.forward :]
    if not child.options:
        return [(o, _single(piece, o, forward=False)) for o in backward]
    choices = [
        NodeRun(_outer(piece, inner, option.backward), index, option.saved)
        for index, option in enumerate(child.options)
    ]
    results = [x for x in lasting(own) if own.result[x] and not own.shared(x)]
    return [(min(backward), Node(tuple(choices), pair=number, leaves=bytes_of(own, results)))]


def _single(piece: Piece, operation: int, forward: bool) -> Node:
    inner = part(piece, (operation,), ()) if forward else part(piece, (), (operation,))
    own = inner.piece
    wanted = {x for x in range(len(own.sizes)) if own.producers[x] and (own.shared(x) or own.result[x])}
    # A backward operation runs once, in its first variant.
    variants = own.variants[0] if forward else own.variants[0][:1]
    choices = tuple(
        NodeRun(
            _outer(
                piece, inner, pass_of(own, [(0, variant.mode)], wanted & set(variant.writes), frozenset({0}))
            )
        )
        for variant in variants
    )
    results = {x for x in wanted if own.result[x] and not own.shared(x)}
    # A first run must make the results that stay; a later one may leave them out.
    first = tuple(
        choice for choice, variant in zip(choices, variants, strict=True) if results <= set(variant.writes)
    )
    recompute = choices if forward and not own.once[0] else ()
    return Node(first, recompute, leaves=bytes_of(own, results))


def _lone(piece: Piece, inner: Subgraph) -> Node:
    """Return a sequence that runs once as one node."""
    own = inner.piece
    runs: list[Run] = [(o, own.variants[o][0].mode) for o in range(own.operations)]
    run = pass_of(own, runs, lasting(own), frozenset(range(own.operations)))
    results = [x for x in lasting(own) if own.result[x] and not own.shared(x)]
    return Node((NodeRun(_outer(piece, inner, run)),), leaves=bytes_of(own, results))


def _loss_node(piece: Piece, middle: Sequence[int]) -> Node:
    if middle:
        return _lone(piece, part(piece, (), middle))
    needs = frozenset(forward_outputs(piece))
    return Node(
        (
            NodeRun(
                Pass(
                    runs=(),
                    time=0.0,
                    reads=needs,
                    writes=frozenset(),
                    starts=frozenset(),
                    steps=(PassMoment(0, needs, frozenset()),),
                )
            ),
        )
    )


def _outer(piece: Piece, inner: Subgraph, run: Pass) -> Pass:
    """Return a subgraph's pass in the numbers of the whole, with what no run remakes resident throughout."""

    def named(tensors: Tensors) -> Tensors:
        return frozenset(inner.tensors[x] for x in tensors)

    runs = tuple((inner.operations[operation], mode) for operation, mode in run.runs)
    fixes = frozenset(x for operation, _mode in runs for x in piece.fixes[operation])
    uses = frozenset(x for operation, _mode in runs for x in piece.uses[operation])
    return Pass(
        runs=runs,
        time=run.time,
        reads=named(run.reads) | uses,
        writes=named(run.writes) | fixes,
        starts=named(run.starts),
        steps=tuple(
            PassMoment(step.bytes, named(step.needs) | uses, named(step.there) | fixes) for step in run.steps
        ),
    )


def _with_values(piece: Piece, nodes: Sequence[Node], loss: int, backward_of: dict[int, int]) -> HGraph:
    """Join tensors with the same role into values; what the cluster does not make is resident, and free."""
    seen: dict[int, list[tuple[int, ...]]] = {}
    made: set[int] = set()
    for index, node in enumerate(nodes):
        for group, choices in enumerate((node.first, node.recompute, node.turn)):
            for number, choice in enumerate(choices):
                made |= choice.run.writes
                for x in choice.run.reads | choice.run.writes:
                    # Needed or made at the same moments of the same passes: such tensors can be one value.
                    steps = [i for i, s in enumerate(choice.run.steps) if x in s.needs or x in s.there]
                    read, written = x in choice.run.reads, x in choice.run.writes
                    seen.setdefault(x, []).append((index, group, number, read, written, *steps))
    final = lasting(piece) | {x for row in piece.fixes for x in row if piece.result[x]}
    identical: dict[object, list[int]] = {}
    for x, marks in seen.items():
        if x in made:
            # A sum also needs the same contributors: its value is complete only with all of them.
            key = (tuple(marks), x in final, piece.producers[x] if len(piece.producers[x]) > 1 else ())
            identical.setdefault(key, []).append(x)
    groups = list(identical.values())
    value = {x: index for index, group in enumerate(groups) for x in group}

    def named(tensors: Tensors) -> Tensors:
        return frozenset(value[x] for x in tensors if x in value)

    def renamed(choice: NodeRun) -> NodeRun:
        run = choice.run
        steps = tuple(PassMoment(s.bytes, named(s.needs), named(s.there)) for s in run.steps)
        return replace(
            choice, run=replace(run, reads=named(run.reads), writes=named(run.writes), steps=steps)
        )

    new = tuple(
        replace(
            node,
            first=tuple(map(renamed, node.first)),
            recompute=tuple(map(renamed, node.recompute)),
            turn=tuple(map(renamed, node.turn)),
        )
        for node in nodes
    )
    producers: list[list[int]] = [[] for _ in groups]
    for index, node in enumerate(new):
        for x in set[int]().union(*(choice.run.writes for choice in node.first)):
            producers[x].append(index)
    return HGraph(
        nodes=new,
        loss=loss,
        sizes=tuple(bytes_of(piece, group) for group in groups),
        lasts=tuple(group[0] in final for group in groups),
        producers=tuple(map(tuple, producers)),
        backward_of=backward_of,
    )
