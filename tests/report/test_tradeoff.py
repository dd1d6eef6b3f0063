"""The figure of time against memory: points lie where their bytes and seconds say."""

from __future__ import annotations

import re
from random import Random

import pytest
from memplan.graphs.units import duration, format_bytes
from memplan.report.tradeoff import Curve, picture

NUMBER = r"(-?[\d.]+)"


def circles(svg: str, line: int) -> list[tuple[float, float]]:
    found = re.findall(rf'<circle class="line{line}" cx="{NUMBER}" cy="{NUMBER}"', svg)
    return [(float(right), float(down)) for right, down in found]


def axis(svg: str) -> tuple[float, float, float, float]:
    """Left, top, bottom and right of the axes."""
    match = re.search(rf'd="M{NUMBER},{NUMBER} V{NUMBER} H{NUMBER}"', svg)
    assert match
    left, top, bottom, right = map(float, match.groups())
    return left, top, bottom, right


@pytest.mark.parametrize("number", range(4))
def test_both_axes_begin_at_0_and_end_at_the_most(number: int) -> None:
    random = Random(number)
    lines = [
        [(random.randint(1, 10**9), random.choice((None, random.uniform(0.1, 5)))) for _ in range(6)]
        for _ in range(2)
    ]
    lines[0].append((10**9 + 1, 2.0))
    svg = picture([Curve("<now>", lines[0]), Curve("planned", lines[1])])
    left, top, bottom, right = axis(svg)
    assert left < right
    assert top < bottom  # y grows downwards
    shown = [(size, seconds) for points in lines for size, seconds in points if seconds is not None]
    most_bytes, most_seconds = (max(column) for column in zip(*shown, strict=True))
    for line, points in enumerate(lines):
        wanted = [
            (left + (right - left) * size / most_bytes, bottom - (bottom - top) * seconds / most_seconds)
            for size, seconds in sorted(points)
            if seconds is not None
        ]
        assert circles(svg, line) == [pytest.approx(each, abs=0.051) for each in wanted]
        path = re.search(rf'<path class="line{line}" d="M([^"]*)"', svg)
        assert path
        assert path[1].split(" L") == [f"{right:.1f},{down:.1f}" for right, down in circles(svg, line)]
    assert "&lt;now&gt;" in svg
    assert f">{duration(most_seconds)}<" in svg
    assert f">{format_bytes(most_bytes)}<" in svg
    width, height = (float(each) for each in re.findall(rf'viewBox="0 0 {NUMBER} {NUMBER}"', svg)[0])
    texts = [tuple(map(float, each)) for each in re.findall(rf'<text x="{NUMBER}" y="{NUMBER}"', svg)]
    assert all(0 < x < width and 0 < y < height for x, y in texts)
    labels = texts[-2:]
    firsts = [circles(svg, line)[0] for line in range(2)]
    assert labels[0][1] < firsts[0][1]  # one name above its line's first point, the other one below
    assert labels[1][1] > firsts[1][1]


def test_a_line_without_points_is_left_out_and_nothing_at_all_is_empty() -> None:
    assert picture([Curve("a", [(1, None)]), Curve("b", ())]) == ""
    svg = picture([Curve("nothing", [(1, None)]), Curve("free", [(4, 0.0)])])
    assert "nothing" not in svg
    left, _top, bottom, right = axis(svg)
    assert left < right
    assert circles(svg, 1) == [(right, bottom)]
