"""The hierarchy of clusters that Hiremate solves, from any partitioner, and which clusters are identical.

Two clusters are identical if their pieces and their children are equal: sizes, times, structure, all but
names. They have the same options, so only one of them is solved. Nothing is minimised in this package: it
says what a cluster is, how it can be run, and what that costs. Assumes the partitioner's order of the forward
parts of a cluster's children. Their backward parts, which may run the other way round (the thesis' Property
1), are as close to the traced order as possible with each cluster run in one go. Linear in the edges on each
level.

| paper (thesis, 3.2 to 3.4)    | here                                                                     |
|-------------------------------|--------------------------------------------------------------------------|
| H-Cluster                     | Branch: its operations; Spec: what its options depend on                 |
| Inter(C), its interface       | the tensors for which Piece.shared holds                                 |
| an option o of cluster j      | Option                                                                   |
| F_j^o, B_j^o                  | Option.first and recompute; Option.backward                              |
| N_o                           | Budgets.options                                                          |

In the order to read:

    piece.py        a cluster's operations and tensors in numbers of their own
    passes.py       a run through it: seconds, bytes step by step, what it reads and makes
    option.py       the passes of an option, forward and backward
    tree.py         the hierarchy
    grid.py         a cluster's options, budget by budget

Reference: X. Zhao, thesis, Université de Bordeaux, 2024, 3.2 and 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ....graphs.clusters.parts import dependencies
from ....graphs.graph import Graph
from .piece import Piece, Subgraph, part, whole


@dataclass(frozen=True)
class Branch:
    """A cluster: its forward operations in the order in which they run, the backward ones in traced order.

    They are its children's, if it has any.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    children: tuple[Branch, ...] = ()

    @property
    def is_cluster(self) -> bool:
        """Tell whether it can be run as one, forward and backward."""
        return len(self.forward) > 1 and bool(self.backward)


@dataclass(frozen=True)
class Tree:
    """A partitioner's hierarchy.

    middle: the loss, and what else runs between forward and backward.
    after: what follows all of it.
    """

    branches: tuple[Branch, ...]
    middle: tuple[int, ...]
    after: tuple[int, ...]


_OPTIONS = 12
"""Number of operations for which a child with options counts."""


@dataclass(frozen=True)
class Spec:
    """A cluster's operations and children: all that its options depend on.

    children: each one's part, and the number of its own spec; None if it is to be taken apart. A cluster
        without children is taken apart.
    """

    piece: Piece
    children: tuple[tuple[Subgraph, int | None], ...]

    @property
    def nodes(self) -> int:
        """Size of its programs: its operations, and `_OPTIONS` for each child with options."""
        inner = sum(_OPTIONS if spec is not None else p.piece.operations for p, spec in self.children)
        return inner or self.piece.operations


@dataclass
class Hierarchy:
    """The hierarchy with identical clusters stored once.

    specs: each after those of its children.
    height: 0 for a spec without children that have options.
    top: the children of the whole.
    root: the whole graph as a piece.
    """

    root: Subgraph
    specs: list[Spec] = field(default_factory=list[Spec])
    height: list[int] = field(default_factory=list[int])
    top: list[tuple[Subgraph, int | None]] = field(default_factory=list[tuple[Subgraph, int | None]])
    middle: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def levels(self) -> list[list[int]]:
        """The specs by height."""
        rows: list[list[int]] = [[] for _ in range(max(self.height, default=-1) + 1)]
        for spec, height in enumerate(self.height):
            rows[height].append(spec)
        return rows


def hierarchy_of(graph: Graph, tree: Tree) -> Hierarchy:
    needs = dependencies(graph).lists()
    forward = [o for branch in tree.branches for o in branch.forward]
    root = whole(graph, forward, [*tree.middle, *_backward(needs, tree.branches)], tree.after)
    found = Hierarchy(root)
    number = {operation: index for index, operation in enumerate(root.operations)}
    known: dict[Spec, int] = {}
    found.top = [
        _spec(found, known, needs=needs, piece=root.piece, branch=branch, number=number)
        for branch in tree.branches
    ]
    found.middle = tuple(number[o] for o in tree.middle)
    found.after = tuple(number[o] for o in tree.after)
    return found


def _spec(
    found: Hierarchy,
    known: dict[Spec, int],
    needs: Sequence[Sequence[int]],
    piece: Piece,
    branch: Branch,
    number: dict[int, int],
) -> tuple[Subgraph, int | None]:
    """Add a branch's spec and those of its children; return its part, and its spec's number or None.

    needs: as in `_backward`.
    number: operation of the graph -> its number in the piece.
    """
    # The children's order, not the traced one: each child runs in one go.
    backward = _backward(needs, branch.children) if branch.children else branch.backward
    inner = part(piece, _in(number, branch.forward), _in(number, backward))
    if not branch.is_cluster:
        return inner, None
    own = {operation: index for index, operation in enumerate((*branch.forward, *backward))}
    children = tuple(
        _spec(found, known, needs=needs, piece=inner.piece, branch=child, number=own)
        for child in branch.children
    )
    spec = Spec(inner.piece, children)
    # Its children are numbered by now, so every spec comes after its parts.
    if spec not in known:
        known[spec] = len(found.specs)
        below = [found.height[child] for _part, child in children if child is not None]
        found.specs.append(spec)
        found.height.append(1 + max(below, default=-1))
    return inner, known[spec]


def _backward(needs: Sequence[Sequence[int]], branches: Sequence[Branch]) -> list[int]:
    """Return the backward operations of some branches, a cluster's in one go, close to the traced order.

    needs: per operation of the graph, those that must run before it.
    """
    units = [
        unit
        for branch in branches
        for unit in ([branch.backward] if branch.is_cluster else [(o,) for o in branch.backward])
    ]
    unit_of = {o: index for index, unit in enumerate(units) for o in unit}
    waits = [
        {unit_of[b] for o in unit for b in needs[o] if b in unit_of} - {i} for i, unit in enumerate(units)
    ]
    users: list[list[int]] = [[] for _ in units]
    for index, row in enumerate(waits):
        for before in row:
            users[before].append(index)
    # By the last operation: in traced order no unit ends before that.
    ready = [(max(unit), index) for index, unit in enumerate(units) if not waits[index]]
    heapify(ready)
    order: list[int] = []
    while ready:
        _last, done = heappop(ready)
        order += units[done]
        for index in users[done]:
            waits[index].discard(done)
            if not waits[index]:
                heappush(ready, (max(units[index]), index))
    return order


def _in(number: dict[int, int], operations: Sequence[int]) -> list[int]:
    return [number[operation] for operation in operations]
