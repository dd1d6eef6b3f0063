"""The instances by name: `catalogue.yaml` says of each where it comes from and what is known of it.

An instance is a file of `public/` or a family with arguments (families.py). What a corpus says of origin and
licence holds for those of its instances that say nothing themselves.
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
"""Results of papers on the corpus `public`."""
BEST_KNOWN = Path(__file__).parent / "best_known.yaml"


@dataclass(frozen=True)
class Known:
    """A least time that is proved or published. budget: as a user writes it; order: `any`, or `file` where
    only schedules in the file's order are meant, which others may beat. seconds, or overhead_percent of the
    plain time."""

    budget: str
    order: str = "any"
    seconds: float | None = None
    overhead_percent: float | None = None

    @property
    def holds(self) -> bool:
        """For every schedule, and in seconds."""
        return self.order == "any" and self.seconds is not None


@dataclass(frozen=True)
class Entry:
    """file: below `FILES`, or family: with arguments, another graph for each. bytes: of all tensors."""

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
        """The file, where there is one."""
        return FILES / self.file if self.file else None

    def graph(self) -> Graph:
        """Read or made, under the instance's name."""
        graph = load_graph(self.path) if self.path else FAMILIES[self.family or ""](**self.arguments)
        return replace(graph, name=self.name)


@dataclass(frozen=True)
class Corpus:
    """instances: by name."""

    name: str
    about: str
    origin: str
    licence: str
    instances: Mapping[str, Entry]


@dataclass(frozen=True)
class Oracle:
    """Answers to compare with; the file's own `description` or `source` says how to read it."""

    name: str
    about: str
    origin: str
    licence: str
    file: str


@cache
def corpora() -> dict[str, Corpus]:
    """By name, as the catalogue has them."""
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
    """Raises InputError for an unknown corpus."""
    if name not in corpora():
        raise InputError(f"unknown corpus {name!r}: did you mean {_nearest(name, [*corpora()])}?")
    return corpora()[name]


def entries() -> list[Entry]:
    """Of all corpora."""
    return [entry for one in corpora().values() for entry in one.instances.values()]


def entry(name: str) -> Entry:
    """Raises InputError for an unknown instance."""
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        raise InputError(f"unknown instance {name!r}: did you mean {_nearest(name, [*known])}?")
    return known[name]


def _nearest(name: str, known: list[str]) -> str:
    """Up to three; the nearest there are where none is near."""
    return " or ".join(get_close_matches(name, known, 3, 0.4) or get_close_matches(name, known, 3, 0.0))


def _entry(name: str, given: dict[str, Any]) -> Entry:
    known = tuple(Known(str(one.pop("budget")), **one) for one in map(dict[str, Any], given.pop("known", ())))
    return Entry(name, known=known, **given.pop("size"), **given)


@cache
def _document() -> dict[str, Any]:
    return cast("dict[str, Any]", read_document(Path(__file__).parent / CATALOGUE))
