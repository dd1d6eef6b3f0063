"""Prices of GPUs: which GPU each is of, and what is refused."""

from __future__ import annotations

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.machines.presets import find_preset
from memplan.sizing.prices import parse_prices

ONE, TWO = find_preset("rtx3060"), find_preset("rtx4090")


@pytest.mark.parametrize(
    ("text", "price"),
    [("1.20/h", 1.2), (" 2 ", 2.0), (".5/h", 0.5), ("RTX 3060=3/h", 3.0), ("rtx3060=4", 4.0)],
)
def test_a_price_of_one_gpu(text: str, price: float) -> None:
    assert parse_prices(text, [ONE]) == {"rtx3060": price}


def test_several_gpus_have_a_price_each_or_none() -> None:
    assert parse_prices(None, [ONE, TWO]) == {}
    assert parse_prices("rtx4090=0.35/h, rtx3060=2", [ONE, TWO]) == {"rtx3060": 2.0, "rtx4090": 0.35}
    assert parse_prices("rtx4090=7", [ONE, TWO]) == {"rtx4090": 7.0}


@pytest.mark.parametrize(
    ("text", "several", "line"),
    [
        ("cheap", False, "'cheap' is not a price per hour"),
        ("0/h", False, "'0/h' is not a price per hour"),
        ("-1/h", False, "'-1/h' is not a price per hour"),
        ("9" * 400, False, "9' is not a price per hour"),
        ("1/d", False, "'1/d' is not a price per hour"),
        ("1.20/h", True, "'1.20/h' names no GPU, and there are several"),
        ("1.20/h,2/h", False, "'1.20/h' names no GPU, and there are several"),
        ("rtx3090=1/h", True, "rtx3090, which is none of the GPUs of --gpu"),
    ],
)
def test_what_is_no_price_of_these_gpus_is_one_line(text: str, several: bool, line: str) -> None:
    with pytest.raises(InputError, match=line) as refusal:
        parse_prices(text, [ONE, TWO] if several else [ONE])
    assert "\n" not in str(refusal.value)
