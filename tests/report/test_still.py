"""Static pages: a table's cells are those of the screen, names first unless they stay last."""

from __future__ import annotations

import re

import pytest
from memplan.comparison.tables import Table
from memplan.report.still import html_table, still_page


def table(columns: int) -> Table:
    heads = [f"<h{place}>" for place in range(columns)]
    return Table(
        "A & B", heads, [[f"r{row}c{place}" for place in range(columns)] for row in range(2)], "a < b"
    )


@pytest.mark.parametrize("columns", [2, 5, 6])
@pytest.mark.parametrize("names_last", [False, True])
def test_cells_are_in_order_and_many_columns_become_cards(columns: int, names_last: bool) -> None:
    title, text, hint = html_table(table(columns), names_last=names_last)
    assert title == "<h2>A &amp; B</h2>"
    assert hint == '<p class="hint">a &lt; b</p>'
    assert ('class="stack"' in text) == (columns > 5)
    order = [*range(columns)] if names_last else [columns - 1, *range(columns - 1)]
    assert re.findall("<th>(.*?)</th>", text) == [f"&lt;h{place}&gt;" for place in order]
    cells = re.findall(r"<td(.*?)>(.*?)</td>", text)
    assert [words for _kind, words in cells] == [f"r{row}c{place}" for row in range(2) for place in order]
    # The column of names is a line of text; each other cell knows its head, for the card.
    for number, (kind, _words) in enumerate(cells):
        place = order[number % columns]
        assert kind == (' class="words"' if place == columns - 1 else f' data-head="&lt;h{place}&gt;"')


def test_what_is_empty_is_left_out() -> None:
    assert [*html_table(Table("", ["a"], [], ""))] == []
    (text,) = html_table(Table("", ["number", "name"], [["-", "x"], ["", "y"], ["0", "-"]], ""))
    kinds = re.findall("<td([^>]*)>", text)
    assert [' class="none"' in kind for kind in kinds] == [False, True, False, True, False, False]


def test_a_page_needs_no_other_file() -> None:
    page = still_page("a < b", ["<p>one</p>", "<p>two</p>"], "p { color: red }")
    assert "<title>a &lt; b: memplan</title>" in page
    assert "<p>one</p>\n<p>two</p>" in page
    assert page.index("p { color: red }") < page.index("</style>")
    assert not re.search(r"<script|src=|@import|url\(", page)
