"""A graph of operations divided by balanced separators, along a tree decomposition.

Two operations are neighbours if one reads what the other makes. A bag of the decomposition separates what is
on its sides; the bag whose largest side is smallest is taken, and the sides are divided in the same way:

    piece ── separator (at most treewidth + 1 operations)
      ├── piece
      └── piece …                depth ≤ log2(operations) + 1

The decomposition is networkx's: least degree or least fill-in, both heuristics.
O(operations · width · depth).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
from networkx.algorithms.approximation import treewidth_min_degree, treewidth_min_fill_in

Bag = frozenset[int]


@dataclass(frozen=True)
class Piece:
    """A subgraph, divided by a separator.

    members: its operations in order, the separator's among them. No member of one part is a neighbour of a
        member of another.
    """

    members: tuple[int, ...]
    separator: tuple[int, ...]
    parts: tuple[Piece, ...]


def taken_apart(predecessors: Mapping[int, Iterable[int]], *, fill_in: bool = False) -> Piece:
    """Take a graph of operations apart by balanced separators.

    predecessors: of every operation, the producers of what it reads.
    fill_in: decompose by least fill-in instead of least degree.
    """
    graph = nx.Graph()
    graph.add_nodes_from(predecessors)
    graph.add_edges_from(
        (k, p) for k, row in predecessors.items() for p in row if p != k and p in predecessors
    )
    if not len(graph):
        return Piece((), (), ())
    _width, decomposition = (treewidth_min_fill_in if fill_in else treewidth_min_degree)(graph)
    tree: dict[Bag, list[Bag]] = {bag: list(decomposition[bag]) for bag in decomposition}
    return _Separation(tree).piece(next(iter(tree)), frozenset())


class _Separation:
    """The recursion that takes a tree decomposition apart.

    tree: the decomposition, a bag's neighbours; bags taken as separators are cut out of it.
    """

    def __init__(self, tree: dict[Bag, list[Bag]]) -> None:
        self.tree = tree

    def piece(self, start: Bag, above: Bag) -> Piece:
        """Return the piece of the bags that are connected with `start`.

        above: the operations of the separators around it.
        """
        order = self._subtree(start)
        separator, sides = self._centre(order, above)
        for side in sides:
            # Cuts the separator out: `_subtree` stays within one side from here on.
            self.tree[side].remove(separator)
        members = {operation for bag, _parent in order for operation in bag} - above
        parts = [self.piece(side, above | separator) for side in sides]
        return Piece(
            tuple(sorted(members)),
            tuple(sorted(separator - above)),
            tuple(sorted((part for part in parts if part.members), key=lambda part: part.members)),
        )

    def _subtree(self, start: Bag) -> list[tuple[Bag, Bag | None]]:
        """Return the bags and their parents, parents first."""
        order: list[tuple[Bag, Bag | None]] = [(start, None)]
        for bag, parent in order:
            order += [(child, bag) for child in self.tree[bag] if child != parent]
        return order

    def _centre(self, order: Sequence[tuple[Bag, Bag | None]], above: Bag) -> tuple[Bag, list[Bag]]:
        """Return the bag without which the largest side is smallest, and its neighbours."""
        top: dict[int, int] = {}
        for place, (bag, _parent) in enumerate(order):
            for operation in bag:
                # The bags of an operation are connected, so the first met, parents first, is the top one: it
                # counts there.
                top.setdefault(operation, place)
        below = dict.fromkeys((bag for bag, _parent in order), 0)
        for place, (bag, _parent) in enumerate(order):
            below[bag] = sum(top[operation] == place for operation in bag - above)
        for bag, parent in reversed(order):
            if parent is not None:
                below[parent] += below[bag]
        everything = below[order[0][0]]
        largest: dict[Bag, int] = {}
        for place, (bag, parent) in enumerate(order):
            # What lies beyond the parent, without the bag's own operations that reach up.
            higher = everything - below[bag] - sum(top[operation] < place for operation in bag - above)
            largest[bag] = max([higher, *(below[side] for side in self.tree[bag] if side != parent)])
        centre = min(largest, key=largest.__getitem__)
        return centre, list(self.tree[centre])
