"""Schedules kept for the next try: so many, the latest used last."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.solvers.problem import Problem
from memplan.solvers.registry import kept


def test_the_oldest_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_here", OrderedDict[str, Any]())
    graph = chain(3)
    problem, schedule = Problem(graph, baseline(graph).peak), baseline_schedule(graph)
    refusal = cast("Any", SimpleNamespace(schedule=schedule))
    names = [f"solver {number}" for number in range(kept.MOST)]
    for name in names:
        kept.keep_for_retry(name, problem, refusal)
    assert [name for name in names if kept.kept_schedule(name, problem) is None] == []
    kept.keep_for_retry(names[0], problem, refusal)
    kept.keep_for_retry("one more", problem, refusal)
    gone = [name for name in (*names, "one more") if kept.kept_schedule(name, problem) is None]
    assert gone == [names[1]]
