"""Tables of parts that were made: they forget all once they are full."""

from __future__ import annotations

from typing import Any

from memplan.solvers.offloading.joint.parts import MOST_KEPT, _keep


def test_a_table_is_emptied_when_it_is_full() -> None:
    table = dict[tuple[Any, ...], Any]()
    for number in range(MOST_KEPT):
        _keep(table, (number,), -number)
    assert len(table) == MOST_KEPT
    _keep(table, ("one more",), 1)
    assert table == {("one more",): 1}
