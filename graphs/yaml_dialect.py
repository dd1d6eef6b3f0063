"""YAML as we read and write it: plain data only, with YAML 1.2's words and numbers.

PyYAML follows YAML 1.1, where `on` is a boolean and `12e9` is text; our files have both. Aliases are
accepted only as far as they don't multiply the document (the 'billion laughs').
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import IO, Any, cast

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MOST_ALIASED_NODES = 1_000_000
_MOST_NESTED = 100

_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_NULL = re.compile(r"~|null|Null|NULL|")


class Loader(_LOADER):
    """Plain data, YAML 1.2's core words."""

    yaml_implicit_resolvers: dict[str | None, list[Any]] = {}  # noqa: RUF012 - PyYAML's own table


class Dumper(_DUMPER):
    """Quotes what `Loader` would not read back as text. Repeats data rather than alias it."""

    yaml_implicit_resolvers: dict[str | None, list[Any]] = {}  # noqa: RUF012 - PyYAML's own table

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


for _dialect in (Loader, Dumper):
    for _tag, _pattern, _first in (
        ("bool", _BOOLEAN, "tTfF"),
        ("int", _INTEGER, "-+0123456789"),
        ("float", _FLOAT, "-+.0123456789"),
        ("null", _NULL, ["~", "n", "N", ""]),
    ):
        pattern = re.compile(rf"(?:{_pattern.pattern})\Z")
        _dialect.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", pattern, list(_first))


def _float(loader: Any, node: Any) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _value in node.value]
    names = [key for key in keys if isinstance(key, str)]
    if len(names) != len(keys):
        raise ValueError(f"{next(k for k in keys if not isinstance(k, str))!r} is not a field's name")
    if len(set(names)) != len(names):
        raise ValueError(f"field {_twice(names)!r} stands twice in one mapping")
    values = [loader.construct_object(value, deep=True) for _key, value in node.value]
    return dict(zip(names, values, strict=True))


Loader.add_constructor("tag:yaml.org,2002:float", _float)
Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _twice(names: Iterable[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))


def load_yaml(text: str) -> object:
    """Raises ValueError with one line where the text is no acceptable YAML."""
    try:
        _refuse_bombs(text)
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{place}{getattr(error, 'problem', None) or error}".split("\n")[0]) from None


def dump_yaml(document: object, stream: IO[str]) -> None:
    yaml.dump(
        document, stream, Dumper, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True
    )


def _refuse_bombs(text: str) -> None:
    """Count, without building anything, how many nodes the aliases stand for and how deep they nest."""
    open_anchors: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    nodes = aliased = 0
    events: Iterable[Any] = cast(Any, yaml).parse(text, _LOADER)
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 0)
            nodes, aliased = nodes + size, aliased + size
            if aliased > _MOST_ALIASED_NODES:
                raise ValueError(f"line {event.start_mark.line + 1}: the aliases multiply without bound")
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append((event.anchor, nodes))
            nodes += 1
            if len(open_anchors) > _MOST_NESTED:
                raise ValueError(f"line {event.start_mark.line + 1}: nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_anchors.pop()
            if anchor:
                sizes[anchor] = nodes - before
