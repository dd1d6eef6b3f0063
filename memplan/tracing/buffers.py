"""Buffers in a functional graph: which pieces of a tensor are written, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..devices.calls.scatters import PLACES, SCATTERED, copy, in_form
from ..torch_support.torch_tensors import memory_of

aten: Any = torch.ops.aten

_VIEWS = {operator: name for name, operator in PLACES.items()}

_FRESH = {
    *(aten.empty, aten.zeros, aten.ones, aten.full, aten.new_empty, aten.new_zeros, aten.new_ones),
    *(aten.new_full, aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like),
}
"""Operators that make a tensor of one number, or of none."""


class Place(NamedTuple):
    """Where a piece of a tensor is: these indices of one dimension. `select` removes the dimension."""

    view: str
    dim: int
    indices: range

    @property
    def call(self) -> tuple[Any, ...]:
        """The view's name and its arguments after the tensor."""
        ends = (self.indices.start, self.indices.stop, self.indices.step)
        return self.view, self.dim, *(ends[:1] if self.view == "select" else ends)

    def is_apart(self, other: Place) -> bool:
        """Tell whether two pieces of one tensor share no element, as far as one dimension tells."""
        one, two = self.indices, other.indices
        whole_steps = one.step == two.step == 1
        # Ranges with other steps may interleave: their ends do not tell.
        return self.dim == other.dim and whole_steps and (one.stop <= two.start or two.stop <= one.start)


Path = tuple[Place, ...]
"""Views that lead to a piece, from the whole on."""


class Write(NamedTuple):
    """A write of one piece of a buffer.

    node: the buffer afterwards. base: the buffer before.
    path: where the piece goes. piece: what is written, cast and broadcast as `copy_` does.
    inner: nodes between the two, of which nothing but this write needs a result.
    """

    node: fx.Node
    base: fx.Node
    path: Path
    piece: fx.Node
    inner: tuple[fx.Node, ...]

    @property
    def is_whole(self) -> bool:
        """Tell whether the piece is all of the buffer."""
        shape = value_of(self.base).shape
        return all(each.view == "slice" and each.indices == range(shape[each.dim]) for each in self.path)


def value_of(node: fx.Node) -> Tensor:
    """Return the fake tensor of a node."""
    return node.meta["val"]


def packet_of(node: fx.Node) -> Any:
    """Return the operator that a node calls, without its overload."""
    return getattr(node.target, "overloadpacket", node.target)


def is_fresh(node: fx.Node) -> bool:
    """Tell whether a node makes a tensor of one number, or of none."""
    return packet_of(node) in _FRESH


def number_in(node: fx.Node) -> Any:
    """Return the number in a fresh tensor, None if it is uninitialized."""
    name = packet_of(node).__name__
    if "full" in name:
        # full, new_full and full_like have it last.
        return node.args[-1]
    return None if "empty" in name else int("ones" in name)


def viewed_place(node: fx.Node) -> Place | None:
    """Return the place that a node views; None for other nodes."""
    target: Any = node.target
    name = _VIEWS.get(target)
    return None if name is None else _place(name, node, node.args[1:])


def written_place(node: fx.Node) -> Place | None:
    """Return the place in which a node has another piece than what it is made from; None for other nodes."""
    target: Any = node.target
    name = SCATTERED.get(target)
    return None if name is None else _place(name, node, node.args[2:])


def _place(name: str, node: fx.Node, arguments: Sequence[Any]) -> Place:
    names = ("dim", "start", "end", "step") if name == "slice" else ("dim", "index")
    given: dict[str, Any] = {**dict(zip(names, arguments, strict=False)), **node.kwargs}
    base: Any = node.args[0]
    dim = given.get("dim", 0) % max(1, value_of(base).dim())
    size = value_of(base).shape[dim]
    if name == "select":
        index = given["index"] % size
        return Place(name, dim, range(index, index + 1))
    return Place(name, dim, range(size)[slice(given.get("start"), given.get("end"), given.get("step"))])


def path_between(base: fx.Node, node: Any) -> Path | None:
    """Return the views that lead from a tensor to a view of it; None if there is another call between."""
    path: Path = ()
    while node is not base:
        if not isinstance(node, fx.Node) or (place := viewed_place(node)) is None:
            return None
        path, node = (place, *path), node.args[0]
    return path


def write_of(node: fx.Node) -> Write | None:
    """Return the write whose result a node is; None for other nodes."""
    if (place := written_place(node)) is None:
        return None
    base: Any = node.args[0]
    piece: Any = node.args[1]
    path, inner = (place,), list[fx.Node]()
    while len(piece.users) == 1:
        # A piece of a piece is written into a view of the buffer, and that into the buffer.
        deeper = written_place(piece)
        if deeper is not None and path_between(base, piece.args[0]) == path:
            path, source = (*path, deeper), piece.args[1]
        elif piece.target is copy and path_between(base, piece.args[0]) == path:
            source = piece.args[1]
        elif piece.target is in_form:
            source = piece.args[0]
        else:
            break
        inner.append(piece)
        piece = source
    return Write(node, base, path, piece, tuple(inner))


def chains(graph: fx.Graph) -> Iterator[list[Write]]:
    """Yield the writes of each buffer that is written, in order."""
    writes = {node: write for node in graph.nodes if (write := write_of(node)) is not None}
    inner = {node for write in writes.values() for node in write.inner}
    writes = {node: write for node, write in writes.items() if node not in inner}
    following: dict[fx.Node, list[Write]] = {}
    for write in writes.values():
        following.setdefault(write.base, []).append(write)
    for write in writes.values():
        if write.base in writes and len(following[write.base]) == 1:
            continue  # it is in the chain of the write before
        chain = [write]
        # Two writes into one state of the buffer fork it: both would need the state before.
        while len(after := following.get(chain[-1].node, ())) == 1:
            chain.append(after[0])
        yield chain


def is_view(node: fx.Node) -> bool:
    """Tell whether what a node returns lies in the memory of what it reads, which it leaves as it is."""
    if node.op != "call_function" or node.target is aten.copy_.default:
        return False
    read = {memory_of(each) for source in node.all_input_nodes for each in tensors_of(source)}
    return any(memory_of(each) in read for each in tensors_of(node))


def tensors_of(node: fx.Node) -> Iterator[Tensor]:
    """Yield the fake tensors that a node returns."""
    made = node.meta.get("val")
    parts: Any = made if isinstance(made, tuple | list) else (made,)
    return (part for part in parts if isinstance(part, Tensor))
