"""A MILP backend in a process of its own: if it crashes or hangs, one clear line comes of it.

    parent: solve_apart ──question.npz──▶ `python -m memplan.solvers.milp.solve` ──answer.npz──▶ parent

Only numbers and JSON travel, no pickle.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from ...graphs.errors import InputError, MissingPackageError
from ...graphs.folders.scratch import Scratch
from .. import child
from .model import Program
from .result import BackendError, Outcome, Result, Settings

GRACE_SECONDS = 10.0
"""How long after its time limit, and a tenth of it, a backend may be at work before it counts as hung."""

Solve = Callable[[Program, Settings, float | None, Mapping[int, float]], Result]

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (InputError, MissingPackageError, BackendError)
}


def solve_apart(
    module: str,
    program: Program,
    settings: Settings,
    time_limit: float | None,
    start: Mapping[int, float],
) -> Result:
    """What `answer` gives in a child that runs `module`. Ctrl-C ends the child, without an answer."""
    with Scratch("milp") as folder:
        question, answer = Path(folder, "question.npz"), Path(folder, "answer.npz")
        ask = {"settings": asdict(settings), "time_limit": time_limit, "start": list(start.items())}
        np.savez(question, ask=np.array(json.dumps(ask)), **vars(program))
        limit = None if time_limit is None else 1.1 * time_limit + GRACE_SECONDS
        process = child.start(module, Path(folder), str(question), str(answer))
        try:
            process.wait(limit)
        except KeyboardInterrupt:
            return Result(Outcome.UNKNOWN, None, -inf, None, interrupted=True)
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"{settings.backend} does not stop: its limit of {time_limit:g} s is long over"
            ) from None
        finally:
            child.kill(process)
        if process.returncode or not answer.exists():
            raise BackendError(f"{settings.backend} crashed: {child.last_words(process, Path(folder))}")
        with np.load(answer) as stored:
            told: dict[str, Any] = json.loads(str(stored["told"]))
            x = np.array(stored["x"], np.float64)
    if error := _ERRORS.get(told["error"]):
        raise error(told["text"])
    return Result(Outcome(told["outcome"]), None, told["bound"], x if told["found"] else None)


def answer(question: str, destination: str, solve: Solve) -> None:
    """The child's side: read the program, solve it, write what came of it."""
    with np.load(question) as stored:
        fields: dict[str, Any] = {name: stored[name] for name in stored.files}
    ask = json.loads(str(fields.pop("ask")))
    for name in ("offset", "tolerance"):
        fields[name] = float(fields[name])
    program = Program(**fields)
    told: dict[str, Any] = {"error": "", "found": False}
    x = np.zeros(0)
    try:
        result = solve(program, Settings(**ask["settings"]), ask["time_limit"], dict(ask["start"]))
        told |= {"outcome": result.outcome.value, "bound": result.bound}
        if result.x is not None:
            told["found"], x = True, result.x
    except tuple(_ERRORS.values()) as error:
        told |= {"error": type(error).__name__, "text": str(error)}
    np.savez(destination, told=np.array(json.dumps(told)), x=x)
