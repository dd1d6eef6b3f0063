"""Settings of solvers: declared once, checked as declared, explained by `plan solvers NAME`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, nan
from typing import Any

import pytest
from memplan.graphs.errors import InputError
from memplan.solvers.registry import run as registry
from memplan.solvers.registry.catalogue import module_of
from memplan.solvers.settings import Declaration, SolverSettings, declared, parse_settings, setting

DECLARED = [
    pytest.param(entry.name, each.name, id=f"{entry.name}-{each.name}")
    for entry in registry.entries()
    for each in fields(module_of(entry).Settings)
]


@pytest.mark.parametrize(("solver", "name"), DECLARED)
def test_each_setting_is_explained_and_refuses_what_is_out_of_its_range(solver: str, name: str) -> None:
    kind = module_of(registry.entry(solver)).Settings
    each = next(field for field in fields(kind) if field.name == name)
    declaration = declared(each)
    assert declaration is not None
    assert declaration.help
    assert registry.declarations_of(solver)[name]["help"] == declaration.help
    faulty: list[Any] = ["no such word"] if declaration.words else []
    faulty += [] if declaration.least is None else [declaration.least - 1, inf, nan]
    faulty += [] if declaration.most is None else [declaration.most + 1]
    faulty += [] if declaration.above is None else [declaration.above]
    faulty += [] if declaration.below is None else [declaration.below]
    assert bool(faulty) == bool(declaration.range())
    for value in faulty:
        with pytest.raises(InputError, match=f"^{name} must be "):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("declaration", "allowed", "refused", "range_"),
    [
        (Declaration("", least=1), [1, 2, 1e9], [0, -1, inf, nan], "1 or more"),
        (Declaration("", least=0, most=2000), [0, 2000], [-1, 2001], "from 0 to 2,000"),
        (Declaration("", least=0, below=1), [0, 0.999], [-0.1, 1, 1.5], "at least 0 and below 1"),
        (Declaration("", above=0), [1e-9, 7], [0, -1, inf], "above 0"),
        (Declaration("", words=("a", "b", "c")), ["a", "c"], ["", "A", "d"], "a, b or c"),
        (Declaration(""), ["anything", -1, None], [], ""),
    ],
)
def test_ranges(declaration: Declaration, allowed: list[Any], refused: list[Any], range_: str) -> None:
    assert declaration.range() == range_
    for value in allowed:
        declaration.validate("x", value)
    for value in refused:
        with pytest.raises(InputError, match=f"^x must be {range_}, not "):
            declaration.validate("x", value)


@dataclass(frozen=True)
class Chosen(SolverSettings):
    share: float | None = setting(None, "a share; empty: the solver chooses", least=0, most=1)


@dataclass(frozen=True)
class OfAPlugIn:
    """What a plug-in may do: no declarations."""

    share: float = 1.0


def test_none_is_allowed_where_it_is_the_default() -> None:
    assert Chosen().share is None
    assert parse_settings("some", Chosen, {"share": "50%"}) == Chosen(0.5)
    with pytest.raises(InputError, match=r"^some: share must be from 0 to 1, not 1\.5$"):
        parse_settings("some", Chosen, {"share": "1.5"})


def test_a_plug_in_need_not_declare() -> None:
    assert parse_settings("some", OfAPlugIn, {"share": "7"}) == OfAPlugIn(7.0)
    assert [declared(each) for each in fields(OfAPlugIn)] == [None]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("1m30s", 90.0)])
def test_seconds_take_units(text: str, seconds: float) -> None:
    for solver in ("offmate", "rockmate"):
        assert registry.chosen_settings(solver, {"seconds": text})["seconds"] == seconds
    with pytest.raises(InputError, match="the setting seconds must be a number, not '1w'"):
        registry.chosen_settings("offmate", {"seconds": "1w"})
