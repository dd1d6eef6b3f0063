"""YAML as we read and write it: data only, without objects, with YAML 1.2's words and numbers.

PyYAML follows YAML 1.1, where `on` is a boolean and `12e9` is text; memplan's files have both. Data is built
from the parser's events, without PyYAML's tree of nodes: that takes 200 bytes and more a byte of text.
Aliases are accepted only as far as they don't multiply the document (the 'billion laughs'), and of tags the
core ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Any, cast

import yaml

from .fields import twice

# LibYAML's, if PyYAML was built with it: the same events, faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MOST_ALIASED_NODES = 1_000_000  # nodes that all aliases together may stand for
_MOST_NESTED = 100
_MOST_DIGITS = 1000  # int() takes time quadratic in the digits

_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_NULL = re.compile(r"~|null|Null|NULL|")
_WORDS = (
    ("bool", _BOOLEAN, list("tTfF")),
    ("int", _INTEGER, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", _NULL, ["~", "n", "N", ""]),
)


class Dumper(_DUMPER):
    """Quotes what `load_yaml` would not read back as text. Repeats data rather than alias it."""

    yaml_implicit_resolvers: dict[str | None, list[Any]] = {}  # noqa: RUF012 - PyYAML's own table

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


for _kind, _pattern, _first in _WORDS:
    # PyYAML calls match: without \Z a beginning would be enough.
    Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern.pattern})\Z"), _first
    )


def dump_yaml(document: object, stream: IO[str]) -> None:
    # default_flow_style=None: collections of scalars alone are written on one line.
    yaml.dump(
        document, stream, Dumper, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True
    )


def load_yaml(text: str) -> object:
    """Parse a YAML text. Raises ValueError with one line if the text is not acceptable YAML."""
    builder = _Builder()
    events: Iterable[Any] = cast(Any, yaml).parse(text, _LOADER)
    event: Any = None
    try:
        for event in events:
            builder.take(event)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{place}{getattr(error, 'problem', None) or error}".split("\n")[0]) from None
    except ValueError as error:
        raise ValueError(f"line {event.start_mark.line + 1}: {error}") from None
    return builder.document


_OPEN = -1
"""The size of an anchor whose mapping or list has not ended."""


@dataclass
class _Collection:
    """A mapping or list that is being built. before: the nodes counted when it began."""

    built: list[Any]
    names: list[str] | None
    anchor: str | None
    before: int


@dataclass
class _Builder:
    """Builds one document from its events.

    nodes: number of nodes that the document stands for, aliased ones counted at each alias.
    """

    document: object = None
    documents: int = 0
    nodes: int = 0
    aliased: int = 0
    open: list[_Collection] = field(default_factory=list[_Collection])
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict[str, tuple[Any, int]])

    def take(self, event: Any) -> None:
        """Take the next event of the parser. Raises ValueError."""
        if isinstance(event, yaml.ScalarEvent):
            self.nodes += 1
            self._add(self._anchored(event.anchor, _scalar(event), 1))
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._aliased(event.anchor))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise ValueError("a second document: a file holds one")

    def _begin(self, event: Any) -> None:
        maps = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", _MAP if maps else _LIST):
            raise ValueError(f"the tag {event.tag} is not that of a {'mapping' if maps else 'list'}")
        if len(self.open) == _MOST_NESTED:
            raise ValueError("nested too deeply")
        if maps and self._wants_name():
            raise ValueError("a mapping is not a field's name")
        # Open until its end: an alias within it would make a cycle.
        if event.anchor:
            self.anchors[event.anchor] = None, _OPEN
        self.open.append(_Collection([], [] if maps else None, event.anchor, self.nodes))
        self.nodes += 1

    def _end(self) -> None:
        one = self.open.pop()
        value: Any = one.built
        if one.names is not None:
            value = dict(zip(one.names, one.built, strict=True))
            # A dict keeps the last of two values with one name.
            if len(value) < len(one.built):
                raise ValueError(f"field {twice(one.names)!r} stands twice in one mapping")
        self._add(self._anchored(one.anchor, value, self.nodes - one.before))

    def _add(self, value: Any) -> None:
        if not self.open:
            self.document = value
        elif self._wants_name():
            if not isinstance(value, str):
                raise ValueError(f"{value!r} is not a field's name")
            cast("list[str]", self.open[-1].names).append(value)
        else:
            self.open[-1].built.append(value)

    def _wants_name(self) -> bool:
        one = self.open[-1] if self.open else None
        # A mapping with as many names as values takes a name next.
        return one is not None and one.names is not None and len(one.names) == len(one.built)

    def _anchored(self, anchor: str | None, value: Any, size: int) -> Any:
        if anchor:
            self.anchors[anchor] = value, size
        return value

    def _aliased(self, anchor: str) -> Any:
        value, size = self.anchors.get(anchor, (None, None))
        if size is None:
            raise ValueError(f"the alias {anchor!r} stands for nothing")
        if size == _OPEN:
            raise ValueError(f"the alias {anchor!r} stands within what it stands for")
        # Counted as if copied: aliases of aliases multiply.
        self.nodes, self.aliased = self.nodes + size, self.aliased + size
        if self.aliased > _MOST_ALIASED_NODES:
            raise ValueError("the aliases multiply without bound")
        return value


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits")
    return int(text, 16 if text.startswith("0x") else 10)


_LIST, _MAP = "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"
_TEXT = ("!", "tag:yaml.org,2002:str")
_READERS: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": _float,
    "null": lambda _text: None,
}
_BY_FIRST = {
    first: [(pattern, _READERS[kind]) for kind, pattern, firsts in _WORDS if first in firsts]
    for _kind, _pattern, _firsts in _WORDS
    for first in _firsts
}
_BY_TAG = {f"tag:yaml.org,2002:{kind}": (pattern, _READERS[kind]) for kind, pattern, _firsts in _WORDS}


def _scalar(event: Any) -> Any:
    text: str = event.value
    # implicit[0] is False for quoted scalars, which are text whatever they spell.
    if event.tag in _TEXT or (event.tag is None and not event.implicit[0]):
        return text
    if event.tag is None:
        readers = _BY_FIRST.get(text[:1], ())
    elif event.tag in _BY_TAG:
        readers = (_BY_TAG[event.tag],)
    else:
        raise ValueError(f"the tag {event.tag} is not one of YAML's core")
    for pattern, reader in readers:
        if pattern.fullmatch(text):
            return reader(text)
    if event.tag is not None:
        raise ValueError(f"{text!r} does not fit its tag {event.tag}")
    return text
