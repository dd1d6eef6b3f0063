"""What a search is asked and what it tells, as lines of JSON between two processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from ....planner.schedule.sequence import Run
from ...milp.result import Outcome


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
    """capacity, copies: as in `Timeline`. start: a sequence to start from; empty: none.
    least: minimise what exceeds the capacity instead."""

    capacity: int
    copies: int
    start: Sequence[Run]
    least: bool
    limits: Limits

    def line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(line: str) -> Question:
        asked: dict[str, Any] = json.loads(line)
        asked["start"] = [(operation, mode) for operation, mode in asked["start"]]
        asked["limits"] = Limits(**asked["limits"])
        return Question(**asked)


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
