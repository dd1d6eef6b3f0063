"""Buffers that are written piece by piece, without a copy of the whole for each piece.

Functionalising makes a new tensor of every change in place:

    buffer = empty(n, 32768)                 b0 = empty
    mm(h, w0, out=buffer[:, :64])            b1 = slice_scatter(b0, mm(h, w0))      copies the buffer
    use(buffer[:, :64])                      use(slice(b1))
    mm(h, w1, out=buffer[:, :64])            b2 = slice_scatter(b1, mm(h, w1))      copies it once more

Three rules, in this order:

1. A buffer that backward makes and reads as a whole is changed in place, as eager PyTorch does it.
2. A piece is read where it was made, not in the buffer. A buffer that is not read otherwise is gone.
3. A buffer that forward fills is made at its last write, of all pieces. Forward changes nothing in place:
   what has been changed can't be recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..devices.calls.scatters import PLACES, SCATTERED, copy, filled, in_form
from ..torch_support.torch_operators import CAST
from ..torch_support.torch_tensors import memory_of
from .buffers import (
    Path,
    Write,
    chains,
    is_fresh,
    is_view,
    number_in,
    packet_of,
    path_between,
    tensors_of,
    value_of,
    viewed_place,
    write_of,
    written_place,
)
from .layers import MARK, Mark

aten: Any = torch.ops.aten

IN_PLACE = "memplan_in_place"
"""Key in a node's meta: the node of the buffer that its call changes."""

_CHANGES: dict[Any, Any] = {
    getattr(packet, overload): getattr(changing, overload)
    for packet, changing, overloads in (
        (aten.addmm, aten.addmm_, ("default",)),
        (aten.baddbmm, aten.baddbmm_, ("default",)),
        (aten.add, aten.add_, ("Tensor", "Scalar")),
        (aten.sub, aten.sub_, ("Tensor", "Scalar")),
        (aten.mul, aten.mul_, ("Tensor", "Scalar")),
        (aten.div, aten.div_, ("Tensor", "Scalar")),
    )
    for overload in overloads
}
"""Per operator that adds to its first argument, or scales it, the one that does it in place."""

_EXACT = {
    *(aten.add, aten.sub, aten.mul, aten.div, aten.neg, aten.abs, aten.where, aten.gather),
    *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.maximum, aten.minimum, aten.clamp),
    *(aten.add_, aten.sub_, aten.mul_, aten.div_, aten.copy_, aten.masked_fill, in_form, filled),
}
"""Operators that round once per element: the strides of what they read change no bit."""

_PRODUCTS = {aten.mm, aten.addmm, aten.addmm_}
"""Products, as exact on a CPU, whose kernels pack what they read. On CUDA strides choose the kernel."""

_OURS = {*SCATTERED, copy, in_form, aten.fill.Tensor, aten.fill.Scalar}
"""What functionalising writes for a change in place, and what replaces it."""


def rewrite_pieces(graph: fx.Graph) -> None:
    """Rewrite a functional graph so that no buffer is copied for a piece of it. Its fakes are kept true."""
    if any(node.target in SCATTERED for node in graph.nodes):
        _Rewriting(graph).run()


class _Rewriting:
    """The rules on one graph.

    views: nodes whose tensors lie in the memory of one that they read.
    changes: nodes of calls that change a buffer.
    changing: memories that are not always what they are at one moment.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.views = {node for node in graph.nodes if is_view(node)}
        self.changes: list[fx.Node] = []
        given = (node for node in graph.nodes if node.op in ("placeholder", "get_attr"))
        self.changing = {memory_of(tensor) for node in given for tensor in tensors_of(node)}

    def run(self) -> None:
        self._drop_unused()
        self._change_in_place()
        self._read_pieces()
        self._drop_unused()
        self._write_at_once()
        self._drop_unused()
        for node in self.graph.nodes:
            if node in self.views and not is_view(node):
                node.meta["val"] = _computed(node)
            if IN_PLACE in node.meta:
                node.meta["val"] = value_of(node.args[0])

    # ── the first rule ──────────────────────────────────────────────────────────────────────────────

    def _change_in_place(self) -> None:
        order = {node: index for index, node in enumerate(self.graph.nodes)}
        for chain in list(chains(self.graph)):
            changes = [_in_place(write) for write in chain]
            if not self._is_buffer_of_backward(chain) or not self._reads_precede(chain, changes, order):
                continue
            if all(write.is_whole and change is None for write, change in zip(chain, changes, strict=True)):
                continue  # the last write is all there is
            buffer = chain[0].base
            self.changing.add(memory_of(value_of(buffer)))
            for write, change in zip(chain, changes, strict=True):
                self._change(buffer, write, change)

    def _is_buffer_of_backward(self, chain: Sequence[Write]) -> bool:
        buffer, last = chain[0].base, chain[-1].node
        own = is_fresh(buffer) or buffer.target in (copy, aten.clone.default)
        floating = value_of(buffer).is_floating_point()
        return own and floating and _is_backward(buffer) and not all(map(self._piece_read, last.users))

    def _reads_precede(
        self, chain: Sequence[Write], changes: Sequence[Any], order: Mapping[fx.Node, int]
    ) -> bool:
        """Tell whether each value of a buffer but the last is read before the buffer changes."""
        for write, change in zip(chain, changes, strict=True):
            own = {write.node, *write.inner, *([] if change is None else [write.piece])}
            moment = order[write.node if change is None else write.piece]
            reads = (use for use in self._uses(write.base) if use not in own)
            if any(use.op == "output" or order[use] > moment for use in reads):
                return False
        return True

    def _uses(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the nodes that read a tensor or a view of it."""
        for user in node.users:
            yield user
            if user in self.views:
                yield from self._uses(user)

    def _change(self, buffer: fx.Node, write: Write, change: Any) -> None:
        """Write a piece into the buffer. change: the operator that makes it there, if any."""
        made = write.piece
        with self.graph.inserting_before(write.node if change is None else made):
            part = self._part(buffer, write.path, write.node)
            if change is None:
                done = self.graph.call_function(aten.copy_.default, (part, made))
            else:
                done = self.graph.call_function(change, (part, *made.args[1:]), made.kwargs)
        self.changes.append(done)
        done.meta = {MARK: made.meta.get(MARK), "val": value_of(part), IN_PLACE: buffer}
        write.node.replace_all_uses_with(buffer)
        for node in (write.node, *write.inner, *([] if change is None else [made])):
            self.graph.erase_node(node)

    def _part(self, node: fx.Node, path: Path, like: fx.Node) -> fx.Node:
        """Make the views that lead to a piece, where the graph inserts."""
        for place in path:
            name, *arguments = place.call
            node = self.graph.call_function(PLACES[name], (node, *arguments))
            node.meta = {MARK: like.meta.get(MARK)}
            node.meta["val"] = _computed(node)
            self.views.add(node)
        return node

    # ── the second rule ─────────────────────────────────────────────────────────────────────────────

    def _read_pieces(self) -> None:
        for node in list(self.graph.nodes):
            if node.target in (copy, aten.fill.Tensor):
                self._replace_copy(node)
            elif node.target is aten.fill.Scalar:
                self._replace(node, filled, (_form(node, node.args[1]), [], []))
        self._drop_unused()
        otherwise: dict[fx.Node, fx.Node] = {}
        inner = {node for chain in chains(self.graph) for write in chain for node in write.inner}
        for node in list(self.graph.nodes):
            if node in self.views and all(use in inner or use in self.views for use in self._uses(node)):
                continue  # it leads to where a piece is written
            if node.target in SCATTERED:
                self._replace_whole(node)
            elif (found := self._piece_read(node)) is not None:
                if self._suits(node, found):
                    node.replace_all_uses_with(found)
                else:
                    otherwise[node] = found
            elif viewed_place(node) is not None:
                node.replace_input_with(node.args[0], self._before_others(node))
        needed = _needed(self.graph, otherwise)
        for node, piece in otherwise.items():
            if node.args[0] not in needed:  # a copy of the piece instead of the buffer
                self._replace(node, in_form, (piece, *_layout(node)))

    def _replace_copy(self, node: fx.Node) -> None:
        """Let a copy read its source alone: of the tensor that it replaces it has the form."""
        target: Any = node.args[0]
        source: Any = node.args[1]
        other = value_of(source)
        if value_of(target).device != other.device:
            return
        same = _layout(node) == _layout(source)
        apart = not self.changing.isdisjoint((memory_of(value_of(node)), memory_of(other)))
        if same and not apart and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(source)
        else:
            self._replace(node, in_form, (source, *_layout(node)))

    def _replace_whole(self, node: fx.Node) -> None:
        """Let a piece that is all of its buffer be the buffer."""
        write = write_of(node)
        if write is None or not write.is_whole or any(user.op == "output" for user in node.users):
            return
        one, other = value_of(node), value_of(write.piece)
        same = (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        if same and one.device == other.device and memory_of(other) not in self.changing:
            node.replace_all_uses_with(write.piece)

    def _piece_read(self, node: fx.Node) -> fx.Node | None:
        """Return the piece that a view of a buffer reads, if it was written as this piece."""
        if (place := viewed_place(node)) is None:
            return None
        buffer: Any = self._before_others(node)
        if place != written_place(buffer):
            return None
        piece = buffer.args[1]
        return None if memory_of(value_of(piece)) in self.changing else piece

    def _before_others(self, node: fx.Node) -> fx.Node:
        """Return the earliest value of a buffer in which a view of it sees what it sees now."""
        place = viewed_place(node)
        buffer: Any = node.args[0]
        assert place is not None
        while (written := written_place(buffer)) is not None and place.is_apart(written):
            buffer = buffer.args[0]
        return buffer

    def _suits(self, view: fx.Node, piece: fx.Node) -> bool:
        """Tell whether those who read a view get the same bits from the piece that was written there."""
        if any(user.op == "output" for user in view.users):
            return False
        one, other = value_of(view), value_of(piece)
        if one.stride() == other.stride():
            return True
        dense = 1 not in one.shape and torch.empty_like(one).stride() == other.stride()
        return dense and self._any_layout(view)

    def _any_layout(self, read: fx.Node) -> bool:
        """Tell whether the strides of a tensor change no bit of what reads it."""
        exact = _EXACT | _PRODUCTS if value_of(read).device.type == "cpu" else _EXACT
        for user in read.users:
            if user in self.views:
                if not self._any_layout(user):
                    return False
            elif user.target in SCATTERED:
                if user.args[0] is read:
                    return False
            elif packet_of(user) not in exact and user.target is not CAST:
                return False
        return True

    # ── the third rule ──────────────────────────────────────────────────────────────────────────────

    def _write_at_once(self) -> None:
        for chain in list(chains(self.graph)):
            first = 0
            for end in range(1, len(chain) + 1):
                if end < len(chain) and self._read_by(chain[end]):
                    continue
                self._join(chain[first:end])
                first = end

    def _read_by(self, write: Write) -> bool:
        """Tell whether nothing but a write reads the value of the buffer that it starts from."""
        own = {write.node, *write.inner}
        return all(use in own or use in self.views for use in self._uses(write.base))

    def _join(self, writes: Sequence[Write]) -> None:
        """Replace writes, of which no value but the last is read, by one of all pieces."""
        start, last = writes[0].base, writes[-1].node
        pieces: dict[Path, fx.Node] = {}
        for write in writes:
            pieces.pop(write.path, None)  # overwritten; the order counts for pieces that overlap
            pieces[write.path] = write.piece
        new = is_fresh(start) and self._read_by(writes[0])
        size = sum(value_of(piece).nbytes for piece in pieces.values())
        if _is_backward(last) or size > value_of(last).nbytes or (len(writes) == 1 and not new):
            return
        places = [[place.call for place in path] for path in pieces]
        begin = _form(last, number_in(start)) if new else start
        self._replace(last, filled, (begin, list(pieces.values()), places))

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────────

    def _replace(self, node: fx.Node, target: Any, arguments: tuple[Any, ...]) -> None:
        """Replace a node by a call that makes a tensor of its form in memory of its own."""
        form: Any = value_of(node)
        with self.graph.inserting_before(node):
            new = self.graph.call_function(target, arguments)
        with form.fake_mode:
            made = torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=form.device)
        new.meta = {MARK: node.meta.get(MARK), "val": made}
        for change in self.changes:
            if change.meta[IN_PLACE] is node:
                change.meta[IN_PLACE] = new
        node.replace_all_uses_with(new)

    def _drop_unused(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            droppable = node in self.views or node.target in _OURS
            if droppable and not node.users and IN_PLACE not in node.meta:
                self.graph.erase_node(node)


def _in_place(write: Write) -> Any:
    """Return the operator that makes a piece in its place, if it is made of what is there; None otherwise."""
    made = write.piece
    if (target := _CHANGES.get(made.target)) is None or len(made.users) > 1 or _cast(write):
        return None
    first, *others = made.args
    used = (value_of(each) for each in others if isinstance(each, fx.Node))
    apart = all(memory_of(tensor) != memory_of(value_of(write.base)) for tensor in used)
    return target if apart and path_between(write.base, first) == write.path else None


def _cast(write: Write) -> bool:
    """Tell whether a piece is cast or broadcast as it is written."""
    made = value_of(write.piece)
    first: Any = write.piece.args[0]
    return made.dtype != value_of(write.base).dtype or made.shape != value_of(first).shape


def _is_backward(node: fx.Node) -> bool:
    return (node.meta.get(MARK) or Mark(None, False)).backward


def _form(node: fx.Node, number: Any) -> tuple[Any, ...]:
    """Return the form of a node's tensor, filled with a number."""
    return (*_layout(node), value_of(node).device, number)


def _layout(node: fx.Node) -> tuple[Any, ...]:
    form = value_of(node)
    return tuple(form.shape), form.stride(), form.dtype


def _computed(node: fx.Node) -> Any:
    """Compute the fake tensors of a node anew."""
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    read: Any = next(tensor for each in node.all_input_nodes for tensor in tensors_of(each))
    with read.fake_mode:
        return target(*args, **kwargs)


def _needed(graph: fx.Graph, instead: Mapping[fx.Node, fx.Node]) -> set[fx.Node]:
    """Return what results and changes in place need if some nodes were others."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if (
            node in needed
            or node.op == "output"
            or IN_PLACE in node.meta
            or node.target is aten.copy_.default
        ):
            needed.update([instead[node]] if node in instead else node.all_input_nodes)
    return needed
