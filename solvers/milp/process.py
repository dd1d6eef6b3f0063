"""A MILP backend in a process of its own: if it crashes or hangs, one clear line comes of it.

    parent: solve_apart ──question──▶ `python -m memplan.solvers.milp.solve` ──answer──▶ parent

Only numbers and JSON travel, no pickle.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

from ...graphs.errors import InputError, MissingPackageError
from ...graphs.folders.scratch import Scratch
from .. import child
from .exchange import load, save
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
        question, answer = Path(folder, "question"), Path(folder, "answer")
        ask = {"settings": told_settings(settings), "time_limit": time_limit, "start": list(start.items())}
        save_question(question, program, ask)
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
        told, arrays = load(answer)
    if error := _ERRORS.get(told["error"]):
        raise error(told["text"])
    return Result(Outcome(told["outcome"]), None, told["bound"], arrays.get("x"))


def told_settings(settings: Settings) -> dict[str, Any]:
    """The settings of a backend, without those of a solver that adds its own to them."""
    return {field.name: getattr(settings, field.name) for field in fields(Settings)}


def save_question(path: Path, program: Program, ask: Mapping[str, Any]) -> None:
    """Write a program, and what is asked about it, for another process."""
    numbers = ("offset", "tolerance")
    arrays = {name: value for name, value in vars(program).items() if name not in numbers}
    save(path, {"ask": ask, **{name: getattr(program, name) for name in numbers}}, arrays)


def load_question(path: Path) -> tuple[Program, dict[str, Any]]:
    """Read what `save_question` wrote."""
    told, arrays = load(path)
    return Program(told["offset"], told["tolerance"], **arrays), told["ask"]


def answer(question: str, destination: str, solve: Solve) -> None:
    """The child's side: read the program, solve it, write what came of it."""
    program, ask = load_question(Path(question))
    told: dict[str, Any] = {"error": ""}
    found: dict[str, Any] = {}
    try:
        result = solve(program, Settings(**ask["settings"]), ask["time_limit"], dict(ask["start"]))
        told |= {"outcome": result.outcome.value, "bound": result.bound}
        if result.x is not None:
            found["x"] = result.x
    except tuple(_ERRORS.values()) as error:
        told |= {"error": type(error).__name__, "text": str(error)}
    save(Path(destination), told, found)
