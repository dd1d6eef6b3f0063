"""Performance profiles and times to a gap: by hand, against the definition, and as pictures and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from click.testing import Result
from memplan.comparison.plot import FACTORS, plots, step_plot
from memplan.comparison.profiles import Curve, performance_profiles, times_to_gap
from memplan.comparison.tables import curve_tables
from memplan.comparison.trials import Row


def test_a_profile_by_hand(rows: Callable[..., Row]) -> None:
    """Seconds at three places, of a and of b: 110, 100; 120, 132; -, 150. At a fourth nobody has any."""
    a = [
        rows("a", "g", 60, 10.0),
        rows("a", "g", 50, 20.0),
        rows("a", "h", 60, None),
        rows("a", "i", 60, None),
    ]
    b = [
        rows("b", "g", 60, 0.0),
        rows("b", "g", 50, 32.0),
        rows("b", "h", 60, 50.0),
        rows("b", "i", 60, None),
    ]
    first, second = performance_profiles([*a, *b])
    assert (first.solver, first.problems, first.steps) == ("b", 3, (1.0, 1.0, pytest.approx(1.1)))
    assert (second.solver, second.problems, second.steps) == ("a", 3, (1.0, pytest.approx(1.1)))
    assert [second.share(x) for x in (1.0, 1.05, 1.2)] == [pytest.approx(k / 3) for k in (1, 1, 2)]


def test_profiles_are_the_definition(rows: Callable[..., Row]) -> None:
    """ρ_s(τ) = |{p : t_ps / min_s t_ps ≤ τ}| / |P|, counted directly."""
    for seed in range(20):
        chance = Random(seed)
        times = {
            (solver, place): chance.choice([None, 100.0 + chance.randint(0, 60)])
            for solver in "abc"
            for place in range(6)
        }
        made = [
            rows(solver, f"g{place}", 60, None if time is None else time - 100.0)
            for (solver, place), time in times.items()
        ]
        best = {
            place: min(known)
            for place in range(6)
            if (known := [time for (_s, p), time in times.items() if p == place and time is not None])
        }
        for curve in performance_profiles(made):
            for factor in (1.0, 1.1, 1.3, 2.0):
                within = sum(
                    time is not None and time <= factor * best[place] * (1 + 1e-9)
                    for (solver, place), time in times.items()
                    if solver == curve.solver
                )
                assert curve.share(factor) == pytest.approx(within / len(best))


def test_time_to_a_gap_by_hand(rows: Callable[..., Row]) -> None:
    """The bound is 100 s: within 5 % of a schedule's seconds is at most 105.26, within 1 % 101.01."""
    found = ((0.5, 130.0), (2.0, 105.0), (7.0, 100.5))
    a = rows("a", "g", 60, 0.5, 8.0, "{}", found)
    late = rows("b", "g", 60, 3.0, 4.0, "{}", ((4.0, 103.0),))
    assert {c.solver: c.steps for c in times_to_gap([a, late], 0.05)} == {"a": (2.0,), "b": (4.0,)}
    assert {c.solver: c.steps for c in times_to_gap([a, late], 0.01)} == {"a": (7.0,), "b": ()}
    larger = replace(late, lower_bound=100.3)  # of one row, it counts for all
    assert {c.solver: c.steps for c in times_to_gap([a, larger], 0.0025)} == {"a": (7.0,), "b": ()}
    assert times_to_gap([replace(a, lower_bound=None), replace(late, lower_bound=inf)], 0.01) == []


def test_pictures_are_well_formed_and_say_what_the_steps_say(rows: Callable[..., Row]) -> None:
    a = rows('a "<&', "g", 60, 10.0, 1.0, "{}", ((1.0, 110.0),))
    b = rows("b", "g", 60, 0.0, 3.0, "{}", ((0.25, 100.0),))
    drawn = plots([a, b])
    assert list(drawn) == ["profile", "within-5-percent", "within-1-percent"]
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    colours = [ElementTree.fromstring(svg).findall("{*}path") for svg in drawn.values()]
    assert {lines[0].get("stroke") for lines in colours} == {colours[0][0].get("stroke")}  # b's
    assert {lines[2].get("stroke") for lines in colours} == {colours[0][2].get("stroke")}  # a's
    titles = [
        one.text for one in ElementTree.fromstring(drawn["profile"]).iter() if one.tag.endswith("title")
    ]
    assert titles[0] == "b: 100% at 1, 100% in the end"
    assert 'a "<&: 0% at 1, 100% in the end' in titles


def test_a_line_climbs_at_its_steps() -> None:
    svg = step_plot([Curve("a", (1.0, 2.0, 4.0), 4)], "t", "x", FACTORS, ["a"])
    path = next(one for one in ElementTree.fromstring(svg).iter() if one.tag.endswith("path")).get("d") or ""
    heights = [float(word.split("H")[0]) for word in path.split("V")[1:]]
    start = float(path.split("H")[0].split()[1])
    assert len(heights) == 2
    assert start > heights[0] > heights[1]
    quarter = start - heights[0]  # a quarter of 100 % each
    assert heights[0] - heights[1] == pytest.approx(quarter, abs=0.2)


def test_tables(rows: Callable[..., Row]) -> None:
    a = rows("a", "g", 60, 10.0, 1.0, "{}", ((1.0, 110.0),))
    b = rows("b", "g", 60, 0.0, 3.0, "{}", ((0.25, 100.0),))
    profile, times = curve_tables([a, b])
    assert profile.heads == ["1", "1.01", "1.02", "1.05", "1.1", "1.2", "1.5", "2", "solver"]
    assert profile.rows[1] == ["0%", "0%", "0%", "0%", "100%", "100%", "100%", "100%", "a"]
    assert times.heads == ["0.1 s", "0.3 s", "solver"]
    assert times.rows == [["0%", "100%", "b"], ["0%", "0%", "a"]]
    assert not list(curve_tables([replace(a, lower_bound=None)]))


@pytest.mark.scripts
def test_bench_writes_the_plots(bench: Callable[..., Result]) -> None:
    words = ["graphs/chain.json", "--solvers", "rotor,store-all", "--budgets", "100%"]
    Path("out").mkdir()
    result = bench(*words, "--plots", "out")
    assert result.exit_code == 0, result.stderr
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == ["profile.svg", "within-1-percent.svg", "within-5-percent.svg"]
    assert "written: out/profile.svg" in result.stderr
    assert "within a factor of the fastest, of 1" in result.stdout
