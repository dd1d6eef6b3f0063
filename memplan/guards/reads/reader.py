"""The reader that rewritten code calls: does what the code says, and reports it to a recorder.

One is in the code of each function that is followed (rewrite.py). Outside of a trace, and on other
threads, it only does what the code says.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Protocol

from ...torch_support.raw import MISSING, is_made
from ...torch_support.unsupported import at_line


class Recorder(Protocol):
    """Interface of what a reader reports to."""

    @property
    def listens(self) -> bool: ...
    def read_name(self, function: FunctionType, name: str, value: Any, *, free: bool) -> None: ...
    def wrote_name(self, function: FunctionType, name: str, *, free: bool, counts: bool) -> None: ...
    def read_attribute(self, thing: Any, name: str, value: Any) -> None: ...
    def read_item(self, thing: Any, key: Any, value: Any, *, made: bool) -> None: ...
    def read_identity(self, thing: Any) -> Any: ...
    def read_same(self, one: Any, other: Any) -> bool: ...
    def read_length(self, thing: Any) -> None: ...
    def read_pattern(self, thing: Any, shape: Any, named: tuple[Any, ...]) -> None: ...
    def read_membership(self, thing: Any, key: Any, value: bool) -> None: ...
    def read_whole(self, thing: Any, *, deep: bool = False) -> None: ...
    def wrote(self, thing: Any, key: Any, *, attribute: bool, counts: bool) -> None: ...
    def callee(self, function: Any) -> Any: ...
    def imported(self, function: FunctionType, module: str, level: int, name: str, value: Any) -> None: ...
    def loaded(self, function: FunctionType, module: str, level: int) -> None: ...


class Reader:
    """Reader in the code of one function.

    function: the function in whose code it is.
    """

    def __init__(self, recorder: Recorder, function: FunctionType) -> None:
        self._recorder, self._function = recorder, function
        self._holders: list[tuple[Any, bool]] = []  # a stack: the key of `a[b[i]] = v` may write items itself
        self._operands: dict[tuple[Any, str], Any] = {}

    def name(self, name: str, value: Any, free: bool) -> Any:
        if self._recorder.listens:
            self._recorder.read_name(self._function, name, value, free=free)
        return value

    def stored(self, name: str, free: bool, counts: bool) -> None:
        if self._recorder.listens:
            self._recorder.wrote_name(self._function, name, free=free, counts=counts)

    def imported(self, module: str, level: int, name: str, value: Any) -> None:
        if self._recorder.listens:
            self._recorder.imported(self._function, module, level, name, value)

    def loaded(self, module: str, level: int) -> None:
        if self._recorder.listens:
            self._recorder.loaded(self._function, module, level)

    def attribute(self, thing: Any, name: str) -> Any:
        try:
            value = getattr(thing, name)
        # That it is missing is an answer too, which a later iteration may not get.
        except AttributeError:
            if self._recorder.listens:
                self._recorder.read_attribute(thing, name, None)
            raise
        if self._recorder.listens:
            self._recorder.read_attribute(thing, name, value)
        return value

    def counted(self, thing: Any, name: str) -> Any:
        """Read an attribute for nothing but to write it once more, without a report."""
        return getattr(thing, name)

    def item(self, thing: Any, key: Any) -> Any:
        # Asked first: reading a defaultdict makes the item.
        made = is_made(thing, key)
        try:
            value = thing[key]
        # As for attributes: absence is what the code has read.
        except LookupError:
            if self._recorder.listens:
                self._recorder.read_item(thing, key, MISSING, made=False)
            raise
        if self._recorder.listens:
            self._recorder.read_item(thing, key, value, made=made)
        return value

    def identity(self, thing: Any) -> Any:
        return self._recorder.read_identity(thing) if self._recorder.listens else thing

    def same(self, one: Any, other: Any) -> bool:
        return self._recorder.read_same(one, other) if self._recorder.listens else one is other

    def keep(self, site: str, thing: Any) -> Any:
        """Keep an operand of a chain of comparisons, which the next one uses too.

        It is kept by the frame: the comparison may call this function recursively.
        """
        self._operands[sys._getframe(1), site] = thing
        return thing

    def kept(self, site: str) -> Any:
        return self._operands.pop((sys._getframe(1), site))

    def slice(self, start: Any, stop: Any, step: Any) -> slice:
        return slice(start, stop, step)

    def whole(self, thing: Any) -> Any:
        """Report that all of a thing is used: by an operator, a loop."""
        if self._recorder.listens:
            self._recorder.read_whole(thing)
        return thing

    def subject(self, site: str, thing: Any) -> Any:
        """Keep the subject of a `match` for the reports of its cases."""
        self._operands[sys._getframe(1), site] = thing
        return thing

    def tries(self, site: str, shape: Any, *named: Any) -> bool:
        """Report what the next case reads of the subject. Returns False: this case is none."""
        if self._recorder.listens:
            self._recorder.read_pattern(self._operands[sys._getframe(1), site], shape, named)
        return False

    def truth(self, thing: Any) -> Any:
        if self._recorder.listens:
            self._recorder.read_length(thing)
        return thing

    def contains(self, key: Any, thing: Any) -> bool:
        found = key in thing
        if self._recorder.listens:
            self._recorder.read_membership(thing, key, found)
        return found

    def callee(self, function: Any) -> Any:
        return self._recorder.callee(function) if self._recorder.listens else function

    def place(self, thing: Any, name: str) -> Any:
        """Report that an attribute of the thing is written next."""
        if self._recorder.listens:
            self._recorder.wrote(thing, name, attribute=True, counts=False)
        return thing

    def counts(self, thing: Any, name: str) -> Any:
        """Report that an attribute of the thing is counted up next."""
        if self._recorder.listens:
            self._recorder.wrote(thing, name, attribute=True, counts=True)
        return thing

    def holder(self, thing: Any, counts: bool = False) -> Any:
        """Note the thing of which an item is written next; the key follows."""
        self._holders.append((thing, counts))
        return thing

    def key(self, key: Any) -> Any:
        thing, counts = self._holders.pop()
        if self._recorder.listens:
            self._recorder.wrote(thing, key, attribute=False, counts=counts)
        return key


def users_place() -> str:
    """Return the user's line that called the reader, as `at_line` writes it.

    It need not be in a file: a notebook's cell has a source too.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return "" if frame is None else at_line(frame.f_code.co_filename, frame.f_lineno)
