"""The child's side of process.py: `python -m memplan.solvers.portfolio.child FOLDER NICENESS`.

FOLDER has the problem. NICENESS: by which we and all that we start step back behind others. Each line of
standard input is a solver's name, the time at which it is to end and its settings as JSON; the answer goes
into a file of the current folder, whose name is then told on standard output, and before it the seconds of
what the solver has found by then. When the input is closed the
process ends with all that it started, whatever it is at.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from time import time
from types import FrameType
from typing import Any

from ...graphs.files.files import load_graph
from ...planner.schedule.schedule import Schedule
from ..child import listen
from ..problem import Answer, InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem
from ..race import Race
from ..registry.catalogue import entry, module_of
from ..settings_text import parse_settings
from ..skipped import collecting
from .process import FOUND, write


class Interrupt:
    """A handler of SIGINT that ends the solver under way, once.

    One that comes while its answer is written, or between two questions, must not cost an answer.
    """

    def __init__(self) -> None:
        self.solving = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.solving:
            self.solving = False
            raise KeyboardInterrupt


def main(folder: Path) -> None:
    interrupt, asked = Interrupt(), SimpleQueue[str]()
    signal.signal(signal.SIGINT, interrupt)
    listen(asked.put)
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a solver prints is no answer
    problem = Problem(load_graph(folder / "graph.json"), int((folder / "budget").read_text()))
    number = 0
    while True:
        solver, end, settings = asked.get().split(maxsplit=2)
        number += 1
        race = Race()
        race.listen = lambda standing: print(f"{FOUND}{standing.best!r}", file=tell, flush=True)
        options = Options(max(0.0, float(end) - time()), race=race)
        told, schedule = answer(problem, solver, json.loads(settings), options, interrupt)
        write(Path(f"{number}.npz"), told, schedule)
        print(f"{number}.npz", file=tell, flush=True)


def answer(
    problem: Problem, solver: str, settings: dict[str, str], options: Options, interrupt: Interrupt
) -> tuple[dict[str, Any], Schedule | None]:
    """Solve: what came of it. options: but for the settings."""
    found: Answer | None = None
    told: dict[str, Any] = {}
    skipped: Sequence[str] = ()
    try:
        module = module_of(entry(solver))
        chosen = parse_settings(solver, module.Settings, settings)
        interrupt.solving = True
        with collecting() as skipped:
            found = module.solve(problem, replace(options, settings=chosen))
        interrupt.solving = False
    except InfeasibleError as refusal:
        figures = refusal.solver, refusal.budget, refusal.least, refusal.floor
        least = refusal.found if isinstance(refusal, NotFoundError) else None
        told = {"refused": figures, "not_found": isinstance(refusal, NotFoundError), "found": least}
    except NotAcceptedError as refusal:
        told = {"not_accepted": str(refusal)}
    except KeyboardInterrupt:
        told = {"ended": True}
    except Exception as error:
        told = {"fault": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    interrupt.solving = False
    if found is None:
        return told, None
    told = {"status": found.status, "interrupted": found.interrupted, "notes": [*found.notes, *skipped]}
    return told, found.schedule


if __name__ == "__main__":
    if os.name == "posix":
        os.nice(int(sys.argv[2]))
    main(Path(sys.argv[1]))
