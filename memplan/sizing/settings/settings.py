"""The settings of a training run in a file of another tool, and the reading of its keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from ...graphs.errors import InputError

Option = str | int
"""A value of an option of sizing."""

OFF = ("", "no", "none", "off", "false", "auto")
"""Texts that say nothing, in any case."""
_CLOSE = 0.885
"""Likeness of a misspelled key: that of `optimiser`; of keys with `eval` and `train` it is less."""
_LARGEST = 10**12
_ON = ("yes", "on", "true", "full")


@dataclass
class Settings:
    """Options that a file sets.

    name: of the file, for messages. tool: whose it is.
    options: by the field of SizeRequest or LoopOptions, in words of the file: (value, what it is called).
    said: what was read, in words.
    uncounted: keys that matter to memory and are not counted, with a word on it.
    processes: number of them, None if the file doesn't say. sharded: what shards weights over them.
    masters: in mixed precision weights are held in 16 bits, with float32 masters.
    includes: files that the file names.
    """

    name: str
    tool: str
    options: dict[str, tuple[Option, str]] = field(default_factory=dict[str, tuple[Option, str]])
    said: list[str] = field(default_factory=list[str])
    uncounted: list[str] = field(default_factory=list[str])
    processes: int | None = None
    sharded: str | None = None
    masters: bool = False
    includes: list[str] = field(default_factory=list[str])

    def take(self, option: str, value: Option | None, words: str) -> None:
        """Set an option. value: None if the file doesn't say."""
        if value is not None:
            self.options[option] = value, words
            self.said.append(words)


class Keys:
    """A mapping of a file. A value that is absent, empty or `auto` is None. All errors name file and key."""

    def __init__(self, row: Mapping[str, Any], name: str) -> None:
        self.row, self._name, self._known = row, name, set[str]()

    def value(self, *names: str) -> Any:
        """Return the first value that is there, of a key with several spellings."""
        self._known.update(names)
        found = (self.row.get(name) for name in names)
        return next(
            (one for one in found if not (isinstance(one, str) and one.lower() in OFF) and one is not None),
            None,
        )

    def integer(self, *names: str) -> int | None:
        value = self.value(*names)
        if isinstance(value, str) and value.isdecimal() and len(value) <= 13:
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST
        ):
            raise InputError(
                f"{self._name}: {self._there(names)} is {value!r}, not an integer from 1 to 10^12"
            )
        return value

    def flag(self, *names: str) -> bool:
        value = self.value(*names)
        if isinstance(value, str) and value.lower() in _ON:
            return True
        if value is not None and not isinstance(value, bool | int):
            raise InputError(f"{self._name}: {self._there(names)} is {value!r}, not true or false")
        return bool(value)

    def text(self, *names: str) -> str | None:
        value = self.value(*names)
        if value is None or value is False:
            return None
        if not isinstance(value, str):
            raise InputError(f"{self._name}: {self._there(names)} is {value!r}, not a text")
        return value

    def texts(self, *names: str) -> list[str]:
        """Return a list of texts, or one text as a list of itself."""
        value = self.value(*names)
        found: Any = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in cast("list[Any]", found)):
            raise InputError(f"{self._name}: {self._there(names)} is {value!r}, not a list of names")
        return cast("list[str]", found)

    def section(self, *names: str) -> Keys:
        """Return a mapping within; an empty one if it is not there."""
        value = self.value(*names)
        row: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        return Keys(row, self._name)

    def present(self, names: Iterable[str]) -> list[str]:
        """Return those of the keys that are set to something."""
        found = list[str]()
        for name in names:
            value = self.value(name)
            if value is not None and value is not False and value != 0 and value != []:
                found.append(name)
        return found

    def expect(self, *names: str) -> None:
        """Take note of keys that are read only if others say so."""
        self._known.update(names)

    def misspelled(self) -> list[str]:
        """Return a question for each key that is none but close to one that is read: 'lora_rr (lora_r?)'."""
        found = list[str]()
        for key in self.row:
            close = [] if key in self._known else get_close_matches(key, self._known, n=1, cutoff=_CLOSE)
            # With the right key there too, the other is one of its own.
            if close and close[0] not in self.row:
                found.append(f"{key} (is it {close[0]}?)")
        return found

    def _there(self, names: Iterable[str]) -> str:
        return next((name for name in names if name in self.row), "")
