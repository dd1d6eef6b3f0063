"""What a search is asked and what it tells, as lines of JSON between two processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from ...milp.result import Outcome
from .window import Window


@dataclass(frozen=True)
class Limits:
    """seconds: None for no limit. threads: CP-SAT's workers, 0 for one a core. enough: the search may stop at
    an objective, in the program's units, as small as this."""

    seconds: float | None = None
    threads: int = 0
    seed: int = 0
    enough: int | None = None


@dataclass(frozen=True)
class Question:
    """start: a sequence to start from; empty: none. least: minimise what exceeds the capacity instead."""

    window: Window
    start: Sequence[Run]
    least: bool
    limits: Limits

    def line(self) -> str:
        window = vars(self.window)
        asked = {name: window[name] for name in ("stages", "capacity", "copies")}
        asked["stages"] = list(self.window.stages)
        for name in ("recompute", "start", "end"):
            asked[name] = [(key, sorted(value)) for key, value in window[name].items()]
        rest = {"first": list(self.start), "least": self.least, "limits": asdict(self.limits)}
        return json.dumps({"window": asked, **rest})

    @staticmethod
    def read(line: str, graph: Graph) -> Question:
        asked: dict[str, Any] = json.loads(line)
        window = asked["window"]
        recompute = {operation: (first, last) for operation, (first, last) in window["recompute"]}
        start, end = ({x: frozenset(row) for x, row in window[name]} for name in ("start", "end"))
        return Question(
            Window(graph, window["stages"], recompute, start, end, window["capacity"], window["copies"]),
            [(operation, mode) for operation, mode in asked["first"]],
            asked["least"],
            Limits(**asked["limits"]),
        )


@dataclass(frozen=True)
class Found:
    """runs: the best sequence, None where none is known. objective: its seconds, or units of the excess.
    bound: no solution is below it. seconds: of searching. done: the search is over."""

    outcome: Outcome
    runs: list[Run] | None
    objective: float
    bound: float
    seconds: float
    done: bool

    def line(self) -> str:
        return json.dumps({**vars(self), "outcome": self.outcome.value})

    @staticmethod
    def read(line: str) -> Found:
        told: dict[str, Any] = json.loads(line)
        told["outcome"] = Outcome(told["outcome"])
        if told["runs"]:
            told["runs"] = [(operation, mode) for operation, mode in told["runs"]]
        return Found(**told)

    @staticmethod
    def nothing() -> Found:
        return Found(Outcome.UNKNOWN, None, inf, -inf, 0.0, done=True)
