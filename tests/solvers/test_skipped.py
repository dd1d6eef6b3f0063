"""Notes of what solvers skipped: collected once each, and by those alone who ask."""

from __future__ import annotations

from memplan.solvers.skipped import add_note, collected, collecting


def test_each_note_is_collected_once_in_order() -> None:
    add_note("nobody collects")
    with collecting() as notes:
        for note in ("one", "another", "one"):
            add_note(note)
        assert list(collected()) == ["one", "another"]
    assert list(notes) == ["one", "another"]
    assert list(collected()) == []
