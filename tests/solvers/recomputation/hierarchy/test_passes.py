"""A pass replaces another only if it is as good in all respects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memplan.solvers.recomputation.hierarchy.passes import Pass, PassMoment, covers

BOTH, ONE = frozenset({1, 2}), frozenset({1})
MOMENT = PassMoment(bytes=5, needs=BOTH, there=BOTH)
PASS = Pass(runs=(), time=3.0, reads=BOTH, writes=ONE, starts=ONE, steps=(MOMENT,))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (PASS, replace(PASS, time=4.0)),
        (replace(PASS, reads=ONE), PASS),
        (replace(PASS, steps=(replace(MOMENT, bytes=4),)), PASS),
        (replace(PASS, steps=(replace(MOMENT, needs=ONE),)), PASS),
        (replace(PASS, steps=(replace(MOMENT, there=ONE),)), PASS),
        (PASS, replace(PASS, steps=(MOMENT, replace(MOMENT, bytes=6, needs=ONE)))),
    ],
)
def test_less_of_one_thing_covers_and_more_does_not(less: Pass, more: Pass) -> None:
    assert covers(less, less)
    assert covers(less, more)
    assert not covers(more, less)
