"""Arguments of `plan bench`: seeds, budgets, and the solvers that compete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import click
import pytest
from click.testing import Result
from memplan.cli.bench.arguments import budgets_argument, check_budgets, chosen_contenders, seeds_argument
from memplan.comparison.file import read_rows
from memplan.comparison.trials import instance
from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain
from memplan.planner.budget import parse_budget
from small_graphs import small_graph

CONTEXT, PARAMETER = click.Context(click.Command("bench")), cast("Any", None)


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, ()), ("1", (0,)), ("3", (0, 1, 2)), ("5,2,5", (5, 2)), ("0, 1", (0, 1))]
)
def test_seeds_are_counted_or_named(text: str | None, seeds: tuple[int, ...]) -> None:
    assert seeds_argument(CONTEXT, PARAMETER, text) == seeds


@pytest.mark.parametrize("text", ["", "-1", "1.5", "a", "1,,2", "0", "9999999999", "0,9999999999", "٣"])
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(click.BadParameter):
        seeds_argument(CONTEXT, PARAMETER, text)


def test_budgets_with_commas() -> None:
    assert budgets_argument(CONTEXT, PARAMETER, None) == []
    found = budgets_argument(CONTEXT, PARAMETER, "60%,12GB")
    assert [(one.percent, one.size) for one in found] == [(60, None), (0, 12_000_000_000)]
    with pytest.raises(click.BadParameter):
        budgets_argument(CONTEXT, PARAMETER, "60%,much")


def test_few_bytes_are_a_budget_if_a_schedule_of_any_graph_fits(tmp_path: Path) -> None:
    """The small graph fits in a few bytes, the other one in none: with both it is a budget."""
    paths = [tmp_path / "small.json", tmp_path / "large.json"]
    for path, graph in zip(paths, (small_graph(Random(11)), chain(3)), strict=True):
        save_graph(graph, path)
    small, large = map(instance, paths)
    few = parse_budget("60")
    check_budgets([few], [small])
    check_budgets([few], [large, small])
    check_budgets([few], [])
    check_budgets([parse_budget("60%"), parse_budget("1000")], [large])
    for budget in (few, parse_budget("999")):
        with pytest.raises(InputError, match=budget.text):
            check_budgets([budget], [large])


def test_settings_go_to_the_solver_that_they_name() -> None:
    found = chosen_contenders("search, rotor,search", {"search.moves": "7"})
    assert [(one.solver, dict(one.given)) for one in found] == [("search", {"moves": "7"}), ("rotor", {})]
    seeded = chosen_contenders("search,rotor", {}, seeds=(4, 2))
    assert [(one.solver, dict(one.given)) for one in seeded] == [
        ("search", {"seed": "4"}),
        ("search", {"seed": "2"}),
        ("rotor", {}),
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"settings": {"moves": "7"}}, "--set moves: settings are SOLVER.KEY=VALUE"),
        ({"settings": {"search.": "7"}}, "--set search.: settings are SOLVER.KEY=VALUE"),
        ({"settings": {"joint.moves": "7"}}, "--set joint.moves: settings are SOLVER.KEY=VALUE"),
        ({"settings": {"search.seed": "7"}, "seeds": (1,)}, "--seeds and --set search.seed= say the same"),
    ],
)
def test_settings_of_no_solver_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        chosen_contenders("search,rotor", **{"settings": {}, **given})
    with pytest.raises(InputError, match="--seeds: of rotor none has such a setting"):
        chosen_contenders("rotor", {}, seeds=(1,))
    with pytest.raises(InputError, match="--gap: of rotor none has such a setting"):
        chosen_contenders("rotor", {}, gap="0.1")


def test_rows_have_what_is_allowed_and_are_solved_apart(bench: Callable[..., Result]) -> None:
    words = ("graphs/chain.json", "--solvers", "rotor", "--budgets", "70%", "--bound-time", "0")
    limited = bench(*words, "--allow", "offload", "-o", "rows.csv", "--json")
    assert limited.exit_code == 3, limited.stderr
    (row,) = json.loads(limited.stdout)["rows"]
    assert (row["allow"], row["outcome"]) == ("offload", "not-accepted")
    assert row["message"].endswith("allow= leaves out recompute")
    rows = bench(*words[:3], "--budgets", "70%,60%", *words[-2:], "--allow", "offload").stdout.splitlines()
    (line,) = [text for text in rows if text.startswith("rotor on chain-6-seed0: ")]
    assert line.endswith("allow= leaves out recompute")
    printed = bench(*words, "--allow", "recompute,offload:activations", "-o", "rows.csv")
    assert "allowed: recompute, offload:activations" in printed.stdout
    assert "rows are in rows.csv already" not in printed.stderr
    assert "allowed: " not in bench(*words, "-o", "rows.csv").stdout
    assert [one.allow for one in read_rows(Path("rows.csv")).values()] == [
        "offload",
        "recompute,offload:activations",
        "",
    ]
    dry = json.loads(bench(*words, "--allow", "offload", "-o", "rows.csv", "--dry-run", "--json").stdout)
    assert [one["solved_before"] for one in dry["rows"]] == [True]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--allow", "recomput"), "did you mean 'recompute'?"),
        (("--allow", "disk"), "'disk' without 'offload'"),
        (("--allow", "recompute", "--update-best", "best.yaml"), "--update-best records schedules of all"),
    ],
)
def test_words_that_cannot_be_allowed_are_refused(
    bench: Callable[..., Result], words: tuple[str, ...], line: str
) -> None:
    result = bench("graphs", "--solvers", "rotor", *words)
    assert result.exit_code == 2
    assert line in result.stderr
