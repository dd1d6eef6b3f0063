"""State that an iteration reads and then changes: the next iteration reads what this one has left."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ...torch_support.raw import Missing, is_a, module_of, own_attributes
from ...torch_support.reach import Path, is_of_python, is_of_user_class
from ...torch_support.unsupported import TraceError
from .contents import Content, content, is_plain
from .reads import Fetch, Node, Read, short, spell


class StateError(TraceError):
    """Error of code that reads what the iteration changes of Python's state."""


class Carried(NamedTuple):
    """A read of state that the iteration then changes.

    left: the form of what the iteration has left.
    refusal: the line that refuses it.
    """

    node: Node
    read: Read
    left: Any
    refusal: str

    def guard(self) -> Read | None:
        """Return the read to compare before an iteration, once the state has settled.

        Returns None if that is not known.

        The state must be as it was, or as an iteration of eager PyTorch leaves it. Of tensors the form
        counts.
        """
        if self.left is None:
            return None
        key = Settled(self.read.fetch, self.read.key, form(content(self.read.value)), self.left)
        return Read(of_settled, key, key.before, None, self.read.place)

    def content(self) -> Any:
        """Return the content now, of tensors their form.

        None for an object of a library, whose caches may go on.
        """
        now = self.read.fetch(self.node.thing, self.read.key)
        kind = type(self.node.thing if is_a(now, Content) else now)
        known = is_of_python(kind) or is_of_user_class(kind) or is_plain(now) or issubclass(kind, Tensor)
        return content(now) if known or module_of(kind) in ("numpy", Missing.__module__) else None


class Counter(NamedTuple):
    """A number that the code counts up and reads, if the code runs once more after each planned iteration.

    thing, key: the object with this attribute, or the dict with this key.
    refusal: the line that refuses it if the loss follows from it.
    """

    thing: Any
    key: Any
    refusal: str

    def entries(self) -> dict[Any, Any] | None:
        """Return the dict that has the number; None if it is elsewhere."""
        found = self.thing if is_a(self.thing, dict) else own_attributes(self.thing)
        # Exactly int: a subclass may count in its own way, and True is no count.
        return found if found is not None and type(found.get(self.key)) is int else None


def carried(node: Node, read: Read, now: Any) -> Carried:
    """Make the record of a state that is read and then changed.

    now: what the iteration has left.
    """
    shown = now if is_plain(read.value) and is_plain(now) else None
    made = Carried(node, read, None, refusal((*node.path, read.key), read.value, shown, read.place))
    return made._replace(left=form(made.content()))


class Settled(NamedTuple):
    """The key of a guard: how the state is read, and the forms that it may have."""

    fetch: Fetch
    key: Any
    before: Any
    left: Any

    def __str__(self) -> str:
        return "__content__" if self.key is None else str(self.key)  # names like this are not shown


def of_settled(thing: Any, key: Settled) -> Any:
    """Return the form of before, also if it is now as an iteration leaves it."""
    now = form(content(key.fetch(thing, key.key)))
    return key.before if now in (key.before, key.left) else now


def form(of: Any) -> Any:
    """Return a content without the values of tensors."""
    if not is_a(of, Content):
        return of
    kind, parts = of
    return Content((kind, parts[:3] if kind is Tensor else tuple(map(form, parts))))


def refusal(path: Path, value: Any, now: Any, place: str) -> str:
    """Return one line for a state that an iteration changes.

    now: None if it can't be shown in a few words.
    """
    to = "" if now is None else f", from {short(value)} to {short(now)}"
    return (
        f"{place}uses {spell(path)}, which the iteration itself changes{to}: a plan would keep it as it is. "
        "Make it a buffer (register_buffer) or an input, or count in the training loop; if it settles after "
        "one iteration, run the model once before it is planned"
    )
