"""Bytes and rates as people write them."""

from __future__ import annotations

from sys import float_info

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.errors import InputError
from memplan.graphs.units import (
    UNITS,
    bare_number,
    check_rate_unit,
    format_bytes,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_span,
    signed,
)


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (0, 0),
        (12_000_000_000, 12_000_000_000),
        (12e9, 12_000_000_000),
        ("12GB", 12_000_000_000),
        ("12gb", 12_000_000_000),
        (" 12 GB ", 12_000_000_000),
        ("12GiB", 12 * 2**30),
        ("11.5GiB", 23 * 2**29),
        ("0.1KB", 100),
        ("1e3", 1000),
        ("2.5e-1kB", 250),
        (".5MiB", 2**19),
        ("7", 7),
        ("7B", 7),
        ("12G", 12 * 10**9),
        ("20m", 20 * 10**6),
        ("1.5 Gi", 3 * 2**29),
        ("1PiB", 2**50),
    ],
)
def test_bytes(written: object, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "GB",
            "-1GB",
            "12Gbit",
            "12 Gb/s",
            "nan",
            "inf",
            "1e999",
            "1,5GB",
            "12GB13",
            "1e9999999",
            "٣GB",
        ),
        *(None, True, -1, float("nan"), float("inf"), [], "12GB/s", 10**25),
    ],
)
def test_what_is_no_number_of_bytes(written: object) -> None:
    with pytest.raises(InputError) as refusal:
        parse_bytes(written)
    assert "\n" not in str(refusal.value)


@given(st.integers(0, 2**40), st.sampled_from(sorted(UNITS)))
def test_whole_numbers_of_a_unit_are_exact(count: int, unit: str) -> None:
    if count * UNITS[unit] <= 2**62:
        assert parse_bytes(f"{count}{unit}") == count * UNITS[unit]


@given(st.integers(0, 2**60))
def test_format_is_within_its_last_digit(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert abs(float(number) * UNITS[unit] - count) <= 0.0051 * UNITS[unit]


def test_rates() -> None:
    assert parse_rate(0.5) == parse_rate("0.5B/s") == 0.5
    assert parse_rate("12GB/s") == parse_rate("12e9") == parse_rate(12e9) == 12e9
    with pytest.raises(InputError, match="must be above 0"):
        parse_rate(0)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10s", 10.0),
        ("1m", 60.0),
        ("2 min", 120.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1M 30S", 90.0),
        ("250ms", 0.25),
        ("0s", 0.0),
    ],
)
def test_times_with_units(written: str, seconds: float) -> None:
    assert parse_span(written) == seconds


@pytest.mark.parametrize("written", ["", "10", "s", "1x", "1m30", "1 m x", "-1s", "1sm", "nan s", "1e999"])
def test_what_is_no_time_with_units(written: str) -> None:
    assert parse_span(written) is None


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (12, "12GB/s, or 12B/s"),
        ("999.5/s", "999.5GB/s, or 999.5B/s"),
        (1000, "1000MB/s, or 1000B/s"),
        (999_999.5, "999999.5MB/s, or 999999.5B/s"),
    ],
)
def test_a_rate_without_a_unit_that_no_link_has_names_the_likely_one(rate: object, said: str) -> None:
    with pytest.raises(InputError, match=f"bytes a second, slower than any: write {said}$"):
        check_rate_unit(rate)


@pytest.mark.parametrize("rate", [0, 1e6, "1000000/s", "12B/s", "0.5GB/s", True, None, float("inf")])
def test_a_rate_with_a_unit_or_of_a_link_is_taken(rate: object) -> None:
    check_rate_unit(rate)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("20us", 2e-5), ("20 µs", 2e-5), ("1.5ms", 0.0015), ("3s", 3), (0, 0), (3600, 3600)],
)
def test_seconds(written: object, seconds: float) -> None:
    assert parse_seconds(written) == seconds


@pytest.mark.parametrize("written", ["20", "us", -1e-9, 3600.1, "3601s", True, None, float("nan")])
def test_no_seconds(written: object) -> None:
    with pytest.raises(InputError, match="is not a time"):
        parse_seconds(written)


def test_a_number_that_has_no_unit() -> None:
    assert (bare_number(" 1.5e3 "), bare_number(7), bare_number(0.5)) == (1500.0, 7.0, 0.5)
    assert [bare_number(other) for other in ("7B", "", None, True, [7])] == [None] * 5


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_thousands_of_digits(digits: int) -> None:
    text = "9" * digits
    for parse in (parse_bytes, parse_rate, parse_seconds):
        for written in (text, f"0.{text}x", 10 ** (digits - 1)) if digits < 4300 else (text, f"0.{text}x"):
            with pytest.raises(InputError, match=r"^.{1,1000}$"):
                parse(written)
    assert bare_number(10**digits) == float_info.max
    check_rate_unit(10**digits)


def test_a_share_that_rounds_to_zero_has_no_minus() -> None:
    assert [signed(share) for share in (-1e-9, -0.0, -0.0004, -0.0006)] == ["+0.0%"] * 3 + ["-0.1%"]
