"""State that an iteration reads and then changes: the next iteration reads what this one has left."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..reach import Path, is_of_python
from .contents import Kind, Missing, content, is_of_user_class, is_plain
from .reads import Node, Read, short, spell


class Carried(NamedTuple):
    """A read of such state. refusal: the line that refuses it."""

    node: Node
    read: Read
    refusal: str

    def content(self) -> Any:
        """Its content now, of tensors their form. None for an object of a library, whose caches may go on."""
        now = self.read.fetch(self.node.thing, self.read.key)
        kind = type(self.node.thing if isinstance(now, Kind) else now)
        known = is_of_python(kind) or is_of_user_class(kind) or is_plain(now) or issubclass(kind, Tensor)
        return content(now) if known or kind.__module__ in ("numpy", Missing.__module__) else None


def carried(node: Node, read: Read, now: Any) -> Carried:
    """now: what the iteration has left."""
    shown = now if is_plain(read.value) and is_plain(now) else None
    return Carried(node, read, refusal((*node.path, read.key), read.value, shown, read.place))


def refusal(path: Path, value: Any, now: Any, place: str) -> str:
    """now: None if it can't be shown in a few words."""
    to = "" if now is None else f", from {short(value)} to {short(now)}"
    return (
        f"{place}uses {spell(path)}, which the iteration itself changes{to}: a plan would keep it as it is. "
        "Make it a buffer (register_buffer) or an input, or count in the training loop; if it settles after "
        "one iteration, run the model once before it is planned"
    )
