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
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from time import time
from typing import Any

from ...graphs.files.files import load_graph
from ..child import listen
from ..problem import InfeasibleError, NotAcceptedError, NotFoundError, Options, Problem
from ..race import Race
from ..registry.catalogue import entry, module_of
from ..settings_text import parse_settings
from ..skipped import collecting
from .process import FOUND, write


def main(folder: Path) -> None:
    asked: SimpleQueue[str] = SimpleQueue()
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
        answer(problem, solver, json.loads(settings), options, Path(f"{number}.npz"))
        print(f"{number}.npz", file=tell, flush=True)


def answer(problem: Problem, solver: str, settings: dict[str, str], options: Options, path: Path) -> None:
    """Solve, and write what came of it. options: but for the settings."""
    told: dict[str, Any]
    schedule = None
    try:
        module = module_of(entry(solver))
        chosen = parse_settings(solver, module.Settings, settings)
        with collecting() as skipped:
            found = module.solve(problem, replace(options, settings=chosen))
        schedule, notes = found.schedule, [*found.notes, *skipped]
        told = {"status": found.status, "interrupted": found.interrupted, "notes": notes}
    except InfeasibleError as refusal:
        figures = refusal.solver, refusal.budget, refusal.least, refusal.floor
        found = refusal.found if isinstance(refusal, NotFoundError) else None
        told = {"refused": figures, "not_found": isinstance(refusal, NotFoundError), "found": found}
    except NotAcceptedError as refusal:
        told = {"not_accepted": str(refusal)}
    except KeyboardInterrupt:
        told = {"ended": True}
    except Exception as error:
        told = {"fault": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on the answer is not to be lost
    write(path, told, schedule)
    signal.signal(signal.SIGINT, interrupt)


if __name__ == "__main__":
    if os.name == "posix":
        os.nice(int(sys.argv[2]))
    main(Path(sys.argv[1]))
