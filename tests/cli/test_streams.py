"""Lines on standard error: control characters are visible, and a long line is short."""

from __future__ import annotations

import pytest
from memplan.cli.streams import CONTROLS, say


def said(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    say(line)
    text = capsys.readouterr().err
    assert text.startswith("plan: ")
    assert text.endswith("\n")
    return text[len("plan: ") : -1]


def test_no_character_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("a\n  b\tc", capsys) == "a b c"
    assert said("red\x1b[31m\x07\x7f", capsys) == "red␛[31m␇␡"
    assert said("left\u202eright\u2067\u061c\x9b", capsys) == "left�right���"
    kept = "é→✓ \u200d\u2010\u202f\u206a"  # neither a direction nor a line's end
    assert kept.translate(CONTROLS) == kept
    ends = [0x00, 0x1F, 0x80, 0x9F, 0x200E, 0x200F, 0x2028, 0x202E, 0x2066, 0x2069]
    assert all(chr(code).translate(CONTROLS) != chr(code) for code in ends)


def test_a_long_line_keeps_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    line = "".join(f"{place:04}" for place in range(375))
    assert said(line, capsys) == line
    longer = said(f"{line}x", capsys)
    assert longer == f"{line[:750]} … {line[-749:]}x"
