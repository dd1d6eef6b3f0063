"""Which tensors may be below the host: persistent ones only if they start there alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from memplan.graphs.machine import Memory
from memplan.solvers.offloading.joint.disk_spill import may_lie_below

DEEPER = Memory.DISK + 1


@pytest.mark.parametrize(
    ("starts", "below"),
    [
        ([Memory.DEVICE], False),
        ([Memory.HOST], False),
        ([Memory.DISK], True),
        ([DEEPER], True),
        ([Memory.HOST, Memory.DISK], False),
        ([Memory.DISK, DEEPER], False),
    ],
)
def test_a_persistent_tensor_may_if_it_starts_there_alone(starts: list[int], below: bool) -> None:
    bits = sum(1 << memory for memory in starts)
    for cyclic, expected in ((True, below), (False, True)):
        state = SimpleNamespace(cyclic=[cyclic], starts_on=lambda _tensor: bits)
        assert may_lie_below(cast("Any", state), 0) == expected
