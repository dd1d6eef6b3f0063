"""The line of what a command does: phase, share, time left, best."""

from __future__ import annotations

import pytest
from memplan.cli.printing import live
from memplan.cli.printing.live import Live, Phase


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(live, "monotonic", lambda: found.now)
    return found


def test_share_and_time_left(clock: Clock) -> None:
    line = Live("profiling")
    line.count(0, 492)
    clock.now = 10.0
    line.count(123, 492, "aten::mm")
    assert line.text() == "10 s: profiling: 123 of 492 (25%), aten::mm, some 30 s left"
    clock.now = 100.0
    line.count(124, 492, "aten::mm")
    assert line.text().endswith("some 5 min left")
    line.count(492, 492)
    assert line.text() == "100 s: profiling: 492 of 492 (100%)"


def test_another_round_begins_its_own_clock(clock: Clock) -> None:
    line = Live("comparing")
    line.count(9, 10)
    clock.now = 100.0
    line.count(0, 10)
    clock.now = 104.0
    line.count(2, 10)
    assert line.text() == "104 s: comparing: 2 of 10 (20%), some 16 s left"


def test_phase_limit_and_the_best_in_every_line(clock: Clock) -> None:
    phase = Phase()
    phase.begin(2, 3)
    line = Live("auto: solving", phase, limit=60.0)
    assert line.text() == "0 of 60 s: 2 of 3, auto: solving"
    line.announce("best 57.6 ms, gap 4%")
    clock.now = 30.0
    line.report("bounds")
    assert line.text() == "30 of 60 s: 2 of 3, bounds; best 57.6 ms, gap 4%"
    phase.begin(3, 3)
    assert str(line.__rich__()) == "30 of 60 s: 3 of 3, bounds; best 57.6 ms, gap 4%"


def test_a_total_that_is_unknown_and_control_characters() -> None:
    line = Live("profiling")
    line.count(0, 0, "comparing\x1b with eager PyTorch")
    assert line.text().endswith("profiling: comparing\x1b with eager PyTorch")
    assert "\x1b" not in str(line.__rich__())
