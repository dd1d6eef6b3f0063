"""The worker's side of highs.py: `python -m memplan.solvers.milp.highs_worker`, which only HiGHS is run in.

Lines of standard input: `solve N` and `relax N`, the question being in question of the current folder, and
`stop N`. Lines of standard output: progress while HiGHS goes on, then `done N`, the answer being in answer.
Better solutions are written to incumbent.npy as they are found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

import highspy
import numpy as np

from ...graphs.arrays import Floats
from ..child import listen
from .exchange import save
from .highs import PROGRESS
from .model import Program
from .process import load_question
from .result import BackendError, Outcome, Settings
from .write import lp_of

IDLE_SECONDS = 20.0
"""A worker without a question for so long ends: it holds 60 MB, and a new one takes 0.1 s to start."""

Answer = tuple[dict[str, Any], dict[str, Floats]]
"""What JSON holds, and arrays by their names."""


class Question:
    """A question under way. stop: set once HiGHS is to stop, with what it has found by then."""

    def __init__(self, number: int, say: Callable[[str], None]) -> None:
        self.number, self.say = number, say
        self.stop = Event()
        self.highs: highspy.Highs | None = None

    def halt(self) -> None:
        self.stop.set()
        if self.highs is not None:
            self.highs.setOptionValue("time_limit", 0.0)  # presolve asks for the time only

    def run(self, highs: highspy.Highs) -> None:
        """Run to the end, or until it is halted."""
        self.highs = highs
        highs.setOptionValue("time_limit", inf)
        if self.stop.is_set():
            self.halt()

        def interrupt(event: highspy.HighsCallbackEvent) -> None:
            if self.stop.is_set() and event.data_in is not None:
                event.data_in.user_interrupt = True

        def log(event: highspy.HighsCallbackEvent) -> None:
            data = event.data_out
            if data.mip_primal_bound > data.mip_dual_bound:  # else: done, or a start is being completed
                self.say(f"{PROGRESS}{data.mip_primal_bound!r} {data.mip_dual_bound!r} {data.running_time!r}")

        def keep(event: highspy.HighsCallbackEvent) -> None:
            with open("incumbent.part", "wb") as file:
                np.save(file, _values(event.data_out.mip_solution, highs.getNumCol()))
            os.replace("incumbent.part", "incumbent.npy")  # whoever ends us finds a whole one

        highs.cbMipInterrupt += interrupt
        highs.cbSimplexInterrupt += interrupt
        highs.cbIpmInterrupt += interrupt
        highs.cbMipLogging += log
        highs.cbMipImprovingSolution += keep
        highs.run()


def _values(solution: Any, size: int) -> Floats:
    """The values of the columns. highspy before 1.11 gives a pointer to them."""
    return np.array(solution if isinstance(solution, np.ndarray) else solution.to_array(size), np.float64)


def solved(question: Question, program: Program, chosen: Mapping[str, Any]) -> Answer:
    settings, start = Settings(**chosen["settings"]), dict(chosen["start"])
    highs = highspy.Highs()
    options: dict[str, bool | int | float] = {
        "log_to_console": False,  # with output_flag off there would be no progress either
        "mip_feasibility_tolerance": program.tolerance,
        "primal_feasibility_tolerance": program.tolerance,
        "mip_rel_gap": settings.gap,
        "random_seed": settings.seed,
    }
    if settings.threads is not None:
        highspy.Highs.resetGlobalScheduler(True)
        options["threads"] = settings.threads
    for name, value in options.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise BackendError(f"highs does not accept {name} = {value}")
    if highs.passModel(lp_of(program)) == highspy.HighsStatus.kError:
        raise BackendError(f"highs does not accept the model of {program.size}")
    if start:
        highs.setSolution(
            len(start), np.array(list(start), np.int32), np.array(list(start.values()), np.float64)
        )
    question.run(highs)
    outcome, objective, bound, x = _standing(program, highs, question.stop.is_set())
    nodes: int = highs.getInfo().mip_node_count
    told = {"outcome": outcome.value, "objective": objective, "bound": bound}
    return {**told, "nodes": None if nodes < 0 else nodes}, {} if x is None else {"x": x}


def _standing(
    program: Program, highs: highspy.Highs, halted: bool
) -> tuple[Outcome, float | None, float, Floats | None]:
    """The outcome, objective, bound and solution.

    An answer that happens to be optimal when HiGHS is halted is not the one that a whole search gives.
    """
    status, info = highs.getModelStatus(), highs.getInfo()
    statuses = highspy.HighsModelStatus
    if status == statuses.kInfeasible:
        return Outcome.INFEASIBLE, None, inf, None
    if status == statuses.kModelEmpty:
        return Outcome.OPTIMAL, program.offset, program.offset, np.zeros(0)
    if halted and status == statuses.kUnknown:
        return Outcome.UNKNOWN, None, -inf, None
    if status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kInterrupt):
        raise BackendError(f"highs gave up: {highs.modelStatusToString(status).lower()}")
    optimal = status == statuses.kOptimal
    mixed = bool(program.integer.any())
    bound = info.mip_dual_bound if mixed else info.objective_function_value if optimal else -inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Outcome.UNKNOWN, None, bound, None
    x = np.array(highs.getSolution().col_value, np.float64)
    outcome = Outcome.OPTIMAL if optimal and not halted else Outcome.FEASIBLE
    return outcome, info.objective_function_value, bound, x


def relaxed(question: Question, program: Program) -> Answer:
    highs = highspy.Highs()
    options: dict[str, bool | str] = {"output_flag": False, "solver": "ipm", "run_crossover": "off"}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    if highs.passModel(lp_of(program, whole=False)) == highspy.HighsStatus.kError:
        raise BackendError(f"highs does not accept the model of {program.size}")
    question.run(highs)
    arrays: dict[str, Floats] = {}
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        highs.setOptionValue("solver", "simplex")
        highs.setOptionValue("presolve", "off")
        question.run(highs)
        _status, found, values = highs.getDualRay()  # pyright: ignore[reportAttributeAccessIssue]
        if found:
            arrays["ray"] = np.array(values, np.float64)
    solution = highs.getSolution()
    if solution.value_valid:
        arrays["x"] = np.array(solution.col_value, np.float64)
    if solution.dual_valid:
        arrays["prices"] = np.array(solution.row_dual, np.float64)
    return {}, arrays


def main() -> None:
    questions, halted = SimpleQueue[tuple[str, Question]](), dict[int, Question]()
    tell = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what HiGHS prints is no answer

    def say(line: str) -> None:
        print(line, file=tell, flush=True)

    def take(line: str) -> None:
        word, number = line.split()
        if word == "stop":
            halted[int(number)].halt()
        else:
            halted[int(number)] = Question(int(number), say)
            questions.put((word, halted[int(number)]))

    listen(take)
    while True:
        try:
            word, question = questions.get(timeout=IDLE_SECONDS)
        except Empty:
            os._exit(0)  # not through the interpreter's end: a thread waits for standard input
        try:
            program, chosen = load_question(Path("question"))
            if chosen["stopped"]:
                question.halt()
            answer = solved(question, program, chosen) if word == "solve" else relaxed(question, program)
        except BackendError as error:
            answer = {"error": str(error)}, {}
        halted.pop(question.number).highs = None
        save(Path("answer"), *answer)
        say(f"done {question.number}")


if __name__ == "__main__":
    sys.exit(main())
