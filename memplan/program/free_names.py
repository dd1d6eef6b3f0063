"""A call as Python source, and the things that its free names refer to."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from .program import Call, Ref, Setting


class Name(NamedTuple):
    """Placeholder for a variable of the source among a call's arguments."""

    text: str


class FreeNames:
    """The free names of generated source, and the things that they refer to.

    things: by name. Targets are f0, f1, …; arguments that are not simple numbers c2, c3, …
    """

    def __init__(self, **things: Any) -> None:
        self.things = things
        self._known: dict[object, str] = {}

    def of_call(self, call: Call) -> str:
        """Return a call as source: `f0(v1, [2, 3], dtype=c4)`."""
        arguments = [self.of_argument(part) for part in call.arguments]
        keywords = [f"{name}={self.of_argument(part)}" for name, part in call.keywords.items()]
        return f"{self._name('f', call.target, call.target)}({', '.join(arguments + keywords)})"

    def of_argument(self, argument: Any) -> str:
        if isinstance(argument, Ref):
            return f"v{argument.value}"
        if isinstance(argument, Name):
            return argument.text
        if isinstance(argument, Setting):
            return f"settings[{argument.index}]"
        if isinstance(argument, list):
            return f"[{', '.join(self.of_argument(part) for part in argument)}]"  # pyright: ignore
        if isinstance(argument, tuple):
            parts = [self.of_argument(part) for part in argument]  # pyright: ignore
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        # Exact types: the repr of a subclass, an enum's for example, is not source.
        if argument is None or type(argument) in (bool, int):
            return repr(argument)
        # `inf` and `nan` are no literals.
        if type(argument) is float and isfinite(argument):
            return repr(argument)
        return self.of_thing(argument)

    def of_thing(self, thing: Any) -> str:
        """Return a name for something that is not taken apart."""
        # By text: not every argument can be a key, and equal dtypes and devices share a name.
        return self._name("c", thing, f"{type(thing).__name__} {thing!r}")

    def _name(self, letter: str, thing: Any, key: object) -> str:
        if key not in self._known:
            self._known[key] = f"{letter}{len(self._known)}"
            self.things[self._known[key]] = thing
        return self._known[key]
