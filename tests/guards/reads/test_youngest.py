"""Objects made since a moment, told from others however many come and go; each look is at new ones alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from memplan.guards.reads import youngest as file
from memplan.guards.reads.youngest import Youngest


def test_objects_that_come_and_go_are_told_apart() -> None:
    """Addresses of freed objects are taken by others meanwhile."""
    random, old = Random(0), [[number] for number in range(200)]
    youngest, new = Youngest(), list[list[int]]()
    with youngest.watched():
        for number in range(2000):
            new.append([number])
            if random.random() < 0.6:
                new.pop(random.randrange(len(new)))
            if random.random() < 0.2:
                assert youngest.was_there(random.choice(old))
                assert not new or not youngest.was_there(random.choice(new))
    assert all(map(youngest.was_there, old))
    assert not any(map(youngest.was_there, new))


def test_a_look_is_at_what_no_look_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a large model makes a million objects, and asks thousands of times."""
    looked = list[Any]()

    def counted(thing: Any) -> int:
        looked.append(None)
        return object.__hash__(thing)

    youngest = Youngest()
    with youngest.watched():
        kept = [[number] for number in range(5000)]
        assert not youngest.was_there(kept[0])
        monkeypatch.setattr(file, "_identity", counted)
        kept.append([1])
        assert not youngest.was_there(kept[-1])
    assert len(looked) < 200
