"""Cards: figures in one line and as HTML."""

from __future__ import annotations

import re

from memplan.planner.card import Card, Entry, cost_entries
from memplan.planner.device_memory import DeviceMemory
from memplan.planner.simulator.simulate import Figures

MIB = 1 << 20


def rows(*given: object, **named: object) -> list[tuple[str, str, str]]:
    return [tuple(each) for each in cost_entries(*given, **named)]  # pyright: ignore


def test_figures_are_compared_with_what_is_known() -> None:
    figures, baseline = Figures(0.012, 8 * MIB, 8 * MIB, 0, 0), Figures(0.010, 16 * MIB, 16 * MIB, 0, 0)
    assert rows(figures) == [("per iteration", "12.0 ms", ""), ("peak", "8.00 MiB", "")]
    assert rows(figures, baseline, 10 * MIB) == [
        ("per iteration", "12.0 ms", "+20.0% vs. baseline"),
        ("peak", "8.00 MiB", "80.0% of the budget"),
        ("baseline peak", "16.00 MiB", ""),
    ]
    assert rows(figures, Figures(0.0, 1, 1, 0, 0))[0][2] == ""


def test_other_memories_have_a_row_if_they_hold_anything() -> None:
    figures = Figures(1.0, MIB, MIB, 3 * MIB, 5 * MIB)
    assert [row[:2] for row in rows(figures)[2:]] == [("host", "3.00 MiB"), ("disk", "5.00 MiB")]


def test_the_peak_of_a_loop_replaces_the_schedules() -> None:
    around = DeviceMemory(6 * MIB, states=2 * MIB), DeviceMemory(32 * MIB)
    (_time, peak) = rows(Figures(1.0, MIB, MIB, 0, 0), None, 4 * MIB, around)
    assert peak == ("peak", "8.00 MiB", "25.0% of the budget: plan 6.00 MiB, states 2.00 MiB")


def test_a_card_in_one_line_and_in_a_page() -> None:
    card = Card("A <plan>", (Entry("peak", "8 MiB", "of & all"), Entry("host", "3 MiB")))
    assert card.line() == "<A <plan>: 8 MiB peak, 3 MiB host>"
    html = card.html()
    assert "<b>A &lt;plan&gt;</b>" in html
    texts = re.findall(r">([^<>]+)<", html)
    assert texts == ["A &lt;plan&gt;", "peak", "8 MiB", "of &amp; all", "host", "3 MiB"]
    assert html.count("<div") == html.count("</div")
