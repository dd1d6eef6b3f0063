"""Schedule files say what the training loop has besides the plan, in bytes that readers check."""

from __future__ import annotations

from pathlib import Path

import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline_schedule
from memplan.planner.device_memory import DeviceMemory
from memplan.planner.schedule.file import (
    LoopStatement,
    schedule_from_document,
    schedule_to_document,
)

GRAPH = chain(3)
LOOP = LoopStatement(DeviceMemory(100, 40, 20, 3, "AdamW"), DeviceMemory(90, 40, 20, 8, "AdamW"))


@pytest.mark.parametrize("loop", [None, LOOP, LOOP._replace(peak=DeviceMemory(90))])
def test_a_statement_is_read_as_it_was_written(loop: LoopStatement | None) -> None:
    document = schedule_to_document(GRAPH, baseline_schedule(GRAPH), loop=loop)
    assert ("loop" in document) == (loop is not None)
    assert schedule_from_document(document, GRAPH, "file").loop == loop


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"states": -1}, r"loop\.peak\.states"),
        ({"owner": 3}, r"loop\.peak\.owner"),
        ({"rest": 3}, "rest"),
    ],
)
def test_a_statement_that_is_none_is_refused(change: dict[str, object], line: str, tmp_path: Path) -> None:
    document = schedule_to_document(GRAPH, baseline_schedule(GRAPH), loop=LOOP)
    document["loop"]["peak"] |= change
    with pytest.raises(InputError, match=line):
        schedule_from_document(document, GRAPH, str(tmp_path))
