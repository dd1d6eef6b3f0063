"""The instances by name: `catalogue.yaml` says of each where it comes from and what is known of it.

An instance is a file of `public/` or a family with arguments (families.py). Origin and licence of a corpus
hold for those of its instances that name none themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..graphs.errors import InputError
from ..graphs.files.documents import read_document
from ..graphs.files.files import load_graph
from ..graphs.graph import Graph
from .families import FAMILIES

CATALOGUE = "catalogue.yaml"
FILES = Path(__file__).parent / "public"
PUBLISHED = FILES / "oracles" / "published.json"
"""File of results that papers published on the corpus `public`."""
BEST_KNOWN = Path(__file__).parent / "best_known.yaml"


@dataclass(frozen=True)
class Known:
    """A minimum time that is proven or published.

    budget: as a user writes it.
    order: `any`, or `file` if it holds only in traced order: schedules in other orders may be faster.
    seconds, overhead_percent: one of them: the time, or its overhead over the baseline's.
    """

    budget: str
    order: str = "any"
    seconds: float | None = None
    overhead_percent: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it holds for every schedule, and is in seconds."""
        return self.order == "any" and self.seconds is not None


@dataclass(frozen=True)
class Entry:
    """An instance of the catalogue: a file, or a family of graphs with arguments.

    operations, tensors: their numbers.
    bytes: of all tensors.
    file: path below `FILES`, None for a family.
    family: name in FAMILIES; arguments: those of its function.
    """

    name: str
    corpus: str
    origin: str
    licence: str
    operations: int
    tensors: int
    bytes: int
    file: str | None = None
    family: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    known: tuple[Known, ...] = ()

    @property
    def path(self) -> Path | None:
        """Path of the file, None for a family."""
        return FILES / self.file if self.file else None

    def graph(self) -> Graph:
        """Return the graph, read or generated, under the instance's name."""
        graph = load_graph(self.path) if self.path else FAMILIES[self.family or ""](**self.arguments)
        return replace(graph, name=self.name)


@dataclass(frozen=True)
class Corpus:
    """A collection of instances, by name."""

    name: str
    about: str
    origin: str
    licence: str
    instances: Mapping[str, Entry]


@dataclass(frozen=True)
class Oracle:
    """Published answers to compare with; `description` or `source` in the file says how to read it."""

    name: str
    about: str
    origin: str
    licence: str
    file: str


@cache
def corpora() -> dict[str, Corpus]:
    """Return the corpora by name, in the catalogue's order."""
    found: dict[str, Corpus] = {}
    for name, about in _document()["corpora"].items():
        said: str = about["about"]
        origin: str = about["origin"]
        licence: str = about["licence"]
        shared: dict[str, Any] = {"corpus": name, "origin": origin, "licence": licence}
        instances = {one: _entry(one, {**shared, **given}) for one, given in about["instances"].items()}
        found[name] = Corpus(name, said, origin, licence, instances)
    return found


@cache
def oracles() -> tuple[Oracle, ...]:
    return tuple(Oracle(name, **given) for name, given in _document()["oracles"].items())


def corpus(name: str) -> Corpus:
    """Return a corpus. Raises InputError for an unknown one."""
    if name not in corpora():
        raise InputError(f"unknown corpus {name!r}: {_known_names(name, [*corpora()])}")
    return corpora()[name]


def entries() -> list[Entry]:
    """Return the instances of all corpora."""
    return [entry for one in corpora().values() for entry in one.instances.values()]


def entry(name: str) -> Entry:
    """Return an instance. Raises InputError for an unknown one."""
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        raise InputError(f"unknown instance {name!r}: {_known_names(name, [*known])}")
    return known[name]


_FEW = 20
"""Names that are all listed in a message."""


def _known_names(name: str, known: list[str]) -> str:
    """Return a question with up to three close names; if none is close, the names or how to list them."""
    if close := get_close_matches(name, known, 3, 0.5):
        return f"did you mean {' or '.join(close)}?"
    return f"it must be one of {', '.join(known)}" if len(known) <= _FEW else "plan instances lists them"


def _entry(name: str, given: dict[str, Any]) -> Entry:
    # Copies: pop must not change the document, which is cached.
    known = tuple(Known(str(one.pop("budget")), **one) for one in map(dict[str, Any], given.pop("known", ())))
    return Entry(name, known=known, **given.pop("size"), **given)


@cache
def _document() -> dict[str, Any]:
    return cast("dict[str, Any]", read_document(Path(__file__).parent / CATALOGUE))
