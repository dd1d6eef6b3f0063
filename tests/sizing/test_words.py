"""The words of `plan size`'s first line."""

from __future__ import annotations

import pytest
from memplan.graphs.machines.gpus import find_gpu
from memplan.sizing.words import gpu_title, number, short_sizes, with_article

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("v100", "a V100 16 GB"),
        ("v100-32gb", "a V100 32 GB"),
        ("rtx3060", "an RTX 3060 12 GB"),
        ("a100-40gb", "an A100 40 GB"),
        ("t4", "a T4 16 GB"),
        ("h100", "an H100 80 GB"),
        ("l4", "an L4 24 GB"),
        ("titan rtx", "a TITAN RTX 24 GB"),
    ],
)
def test_a_gpu_with_its_memory_and_article(name: str, title: str) -> None:
    assert with_article(gpu_title(find_gpu(name))) == title


def test_the_article_of_other_names() -> None:
    assert with_article("mine 24 GB") == "a mine 24 GB"
    assert with_article("Own card") == "an Own card"


@pytest.mark.parametrize(
    ("sizes", "written"),
    [
        ((11.68 * GIB, 12.37 * GIB, 14.88 * GIB), ["11.7 GiB", "12.4", "14.9"]),
        ((6.9 * GIB, 101 * GIB, 140.1 * GIB), ["6.90 GiB", "101", "140"]),
        ((16.33 * 2**20, 20 * 2**20, 14.28 * GIB), ["16.3 MiB", "20.0", "14.3 GiB"]),
        ((500, 2000, 1023 * 2**20), ["500 B", "1.95 KiB", "1023 MiB"]),
    ],
)
def test_sizes_name_their_unit_where_it_changes(sizes: tuple[float, ...], written: list[str]) -> None:
    assert short_sizes(sizes) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (4608.3, "4,600"),
        (13.2, "13"),
        (9.09, "9.1"),
        (0.6123, "0.61"),
        (0.00123, "0.0012"),
        (43919, "44,000"),
        (0, "0"),
    ],
)
def test_numbers_have_two_digits(value: float, written: str) -> None:
    assert number(value) == written
