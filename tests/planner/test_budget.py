"""Budgets as users write them: shares of the plain peak, and of the activations in it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain, unet
from memplan.planner.baseline import baseline
from memplan.planner.budget import parse_budget, parse_reserve


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 20_000))
def test_a_share_of_the_activations_is_above_what_stays(resident: int, above: int, hundredths: int) -> None:
    percent = f"{hundredths / 100:.2f}"
    size = parse_budget(f"{percent}%a").bytes_of(resident + above, resident)
    assert size == resident + int(above * Fraction(percent) / 100)
    assert parse_budget(f"{percent}%").bytes_of(resident + above, resident) == int(
        (resident + above) * Fraction(percent) / 100
    )


def test_all_of_the_activations_are_the_peak() -> None:
    for graph in (chain(6), unet(2)):
        peak = baseline(graph).peak
        assert 0 < graph.resident_bytes < peak
        assert parse_budget("100%a").bytes_of(peak, graph.resident_bytes) == peak


def test_bytes_are_bytes() -> None:
    assert parse_budget("1.5GB").bytes_of(10, 5) == 1_500_000_000


def test_it_says_what_it_is_of() -> None:
    said = parse_budget("50%a").echo(3000, 1000)
    assert (
        said
        == "50%a of the 1.95 KiB that the baseline's peak has above what stays, 1000 B = 2,000 B = 1.95 KiB"
    )
    assert (
        parse_budget("50%").echo(3000, 1000) == "50% of the baseline's peak (2.93 KiB) = 1,500 B = 1.46 KiB"
    )


@pytest.mark.parametrize("text", ["60%b", "60a", "60%aa", "%a", "-1%a", "0%a"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InputError):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("90", "90%"),
        ("0.6", "60%"),
        ("0.5", "50%"),
        ("1.5", "1.5%"),
        ("7", "7%"),
        ("5e1", "5e1%"),
        ("6e-1", "60%"),
    ],
)
def test_a_number_that_can_not_be_meant_is_refused_with_both_readings(text: str, ways: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_budget(text).check_meant(1000)
    assert f"write {ways} for a share of the baseline's peak" in str(refused.value)
    assert f"{text}GB" in str(refused.value)


def test_bytes_that_a_graph_could_have_are_bytes() -> None:
    """Without a unit, where some graph is as small; with one, always."""
    parse_budget("90").check_meant(90)
    parse_budget("90B").check_meant(10**9)
    parse_budget("1000").check_meant(10**9)
    parse_budget("60%").check_meant(10**9)
    with pytest.raises(InputError, match="that is 89 bytes, less than any schedule of the graph needs"):
        parse_budget("89").check_meant(90)


@pytest.mark.parametrize(
    ("text", "ways"),
    [("1", "that is 1 byte, which no device would notice: write 1GB, or 1B for bytes"),
     ("0.5", "a reserve without a unit is bytes, whole ones: write 0.5GB"),
     ("2e2", "write 2e2GB, or 200B for bytes")],
)  # fmt: skip
def test_a_reserve_that_can_not_be_meant_is_refused_with_both_readings(text: str, ways: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_reserve(text).check_reserve_meant(10**6)
    assert str(refused.value).endswith(ways)


def test_bytes_to_leave_free_that_a_graph_could_notice() -> None:
    parse_reserve("0").check_reserve_meant(10**9)
    parse_reserve("1B").check_reserve_meant(10**9)
    parse_reserve("1000").check_reserve_meant(10**9)
    parse_reserve("1").check_reserve_meant(90)
    with pytest.raises(InputError, match="not a number of bytes"):
        parse_reserve("7%")


@pytest.mark.parametrize("text", ["9" * 5000, "0" * 5000, "." + "9" * 5000, "1." + "9" * 5000, "9" * 400])
def test_a_number_of_thousands_of_digits_is_one_line(text: str) -> None:
    for parse in (parse_budget, parse_reserve):
        with pytest.raises(InputError, match=r"^.{1,1000}$"):
            parse(text)
