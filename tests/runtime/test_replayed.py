"""What the caching allocator takes for a schedule: by hand, and never less than the bytes that live."""

from __future__ import annotations

import numpy as np
from memplan.graphs.generators import chain
from memplan.planner.addresses.lifetimes import Lifetimes, lifetimes
from memplan.planner.plain import plain_schedule
from memplan.runtime.simulated.replayed import reserved

MIB = 2**20


def rows(*lives, turn):
    """lives: (MiB, start, end)."""
    size, start, end = np.array(lives, np.int64).T
    return Lifetimes(np.arange(len(lives)), size * MIB, start, end, turn)


def test_small_tensors_share_a_segment_of_20_mib():
    assert reserved(rows((3, 0, 2), (4, 1, 3), turn=4)) == 20 * MIB


def test_a_hole_between_two_that_live_is_not_used_by_a_larger_one():
    """12 MiB leave theirs, 14 MiB don't fit in there: 26 are taken, 14 live at most."""
    found = rows((12, 0, 1), (14, 1, 2), turn=3)
    assert found.live().max() == 14 * MIB
    assert reserved(found) == 26 * MIB


def test_what_is_always_there_is_taken_once():
    assert reserved(rows((40, 0, 4), turn=4)) == 40 * MIB


def test_no_less_than_what_lives():
    graph = chain(12, seed=3)
    found = lifetimes(graph, plain_schedule(graph))
    large = found._replace(size=found.size * MIB)
    assert reserved(large) >= large.live().max()
