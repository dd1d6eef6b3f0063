"""The statement of a loop's device memory: its parts are its total, in every wording."""

from __future__ import annotations

from itertools import product

import pytest
from memplan.graphs.units import format_bytes
from memplan.planner.device_memory import DeviceMemory


@pytest.mark.parametrize("sizes", [*product((0, 3 << 20), (0, 5 << 20), (0, 7 << 20))])
def test_parts_are_those_that_are_not_empty(sizes: tuple[int, int, int]) -> None:
    plan = 1 << 20
    memory = DeviceMemory(plan, *sizes, owner="AdamW")
    assert memory.total == plan + sum(sizes)
    names = ("AdamW's states", ".grad", "other")
    there = [(format_bytes(size), name) for size, name in zip(sizes, names, strict=True) if size]
    assert memory.extra == " and ".join(f"{size} of {name}" for size, name in there)
    parts = ", ".join([f"plan {format_bytes(plan)}", *(f"{name} {size}" for size, name in there)])
    assert memory.parts == (parts if there else "")
    total = format_bytes(memory.total)
    assert str(memory) == (f"{total} ({parts})" if there else total)
    limit = DeviceMemory(1 << 30)
    assert memory.within(limit) == f"{total} of 1.00 GiB" + (f" ({parts})" if there else "")


def test_what_is_missing_is_of_something_else() -> None:
    memory = DeviceMemory(10, states=5, other=2)
    assert memory.at_least(20) == DeviceMemory(10, states=5, other=5)
    assert memory.at_least(17) == memory.at_least(3) == memory
    assert DeviceMemory(1, states=1 << 20).extra == "1.00 MiB of states"
