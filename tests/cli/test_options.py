"""Callbacks of shared options: what each takes, and what it says of anything else."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any, cast

import click
import pytest
from memplan.cli.options import (
    ANY,
    NOTES,
    allowance_argument,
    budget_argument,
    folder_argument,
    pieces_argument,
    reserve_argument,
    seconds_argument,
    settings_argument,
    table_argument,
    with_gap,
    writable_as,
)
from memplan.graphs.errors import InputError

CONTEXT, PARAMETER = click.Context(click.Command("any")), cast("Any", None)


@pytest.mark.parametrize("seconds", [None, 1e-9, 5, 1e9])
def test_a_time_limit_that_is_one(seconds: float | None) -> None:
    assert seconds_argument(CONTEXT, PARAMETER, seconds) == seconds


@pytest.mark.parametrize("seconds", [0, -1, inf, nan])
def test_a_time_limit_that_is_none(seconds: float) -> None:
    with pytest.raises(click.BadParameter, match=f"above 0 seconds and finite, not {seconds:g}"):
        seconds_argument(CONTEXT, PARAMETER, seconds)


def test_no_time_at_all_is_a_time_for_bounds() -> None:
    assert [allowance_argument(CONTEXT, PARAMETER, seconds) for seconds in (0, 3.5)] == [0, 3.5]
    for seconds in (-1e-9, inf, nan):
        with pytest.raises(click.BadParameter, match="0 seconds or more and finite, not"):
            allowance_argument(CONTEXT, PARAMETER, seconds)


def test_settings_are_split_at_the_first_sign() -> None:
    found = settings_argument(CONTEXT, PARAMETER, (" seed =3", "name=a=b", "empty="))
    assert found == {"seed": "3", "name": "a=b", "empty": ""}
    for texts, line in (
        (("seed",), "'seed' is not of the form key=value"),
        ((" =3",), "' =3' is not of the form key=value"),
        (("seed=3", " seed=4"), "'seed' is given twice"),
    ):
        with pytest.raises(click.BadParameter, match=line):
            settings_argument(CONTEXT, PARAMETER, texts)


def test_a_gap_is_given_once() -> None:
    assert with_gap({"seed": "1"}, None) == {"seed": "1"}
    assert with_gap({"seed": "1"}, "0.1") == {"seed": "1", "gap": "0.1"}
    with pytest.raises(InputError, match=r"--gap and --set rotor\.gap= say the same"):
        with_gap({"gap": "0"}, "0.1", "rotor.")


@pytest.mark.parametrize(
    ("text", "noted"), [("12Gb", True), ("3 Kib", True), ("12GB", False), ("12b", False)]
)
def test_bits_are_taken_for_bytes_with_a_note(text: str, noted: bool) -> None:
    context = click.Context(click.Command("any"))
    budget = budget_argument(context, PARAMETER, text)
    assert budget is not None
    assert (NOTES in context.meta) == noted
    assert not noted or f"{text} is taken for bytes" in context.meta[NOTES][0]


def test_budgets_that_are_none() -> None:
    assert budget_argument(CONTEXT, PARAMETER, None) is None
    assert reserve_argument(CONTEXT, PARAMETER, None) is None
    assert pieces_argument(CONTEXT, PARAMETER, "any") is ANY
    half = pieces_argument(CONTEXT, PARAMETER, "50%")
    assert half is not None
    assert half.percent == 50
    for parse in (budget_argument, reserve_argument, pieces_argument):
        with pytest.raises(click.BadParameter):
            parse(CONTEXT, PARAMETER, "much")


def test_output_files_have_their_suffix(tmp_path: Path) -> None:
    packed, alone = writable_as(".json", ".yaml", packed=True), writable_as(".json")
    for name, check, fits in (
        ("a.json", packed, True),
        ("a.json.gz", packed, True),
        ("a.txt.gz", packed, False),
        ("a.gz", packed, False),
        ("a.json.gz", alone, False),
        ("a.json", alone, True),
        ("a.yaml", alone, False),
    ):
        path = tmp_path / name
        if fits:
            assert check(CONTEXT, PARAMETER, path) == path
        else:
            with pytest.raises(click.BadParameter, match=r"the suffix must be \.json"):
                check(CONTEXT, PARAMETER, path)
    assert alone(CONTEXT, PARAMETER, None) is None


def test_a_table_is_a_regular_csv_file(tmp_path: Path) -> None:
    there = tmp_path / "rows.csv"
    assert table_argument(CONTEXT, PARAMETER, None) is None
    assert table_argument(CONTEXT, PARAMETER, there) == there
    there.write_text("")
    assert table_argument(CONTEXT, PARAMETER, there) == there
    (tmp_path / "folder.csv").mkdir()
    for name, line in (("folder.csv", "it is no regular file"), ("rows.txt", "the suffix must be .csv")):
        with pytest.raises(click.BadParameter, match=line):
            table_argument(CONTEXT, PARAMETER, tmp_path / name)


def test_a_folder_that_can_be_made(tmp_path: Path) -> None:
    assert folder_argument(CONTEXT, PARAMETER, None) is None
    for folder in (tmp_path, tmp_path / "new" / "deeper"):
        assert folder_argument(CONTEXT, PARAMETER, folder) == folder
        assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(click.BadParameter, match="cannot be made: Not a directory"):
        folder_argument(CONTEXT, PARAMETER, tmp_path / "file" / "deeper")
