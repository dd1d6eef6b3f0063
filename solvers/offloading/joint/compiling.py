"""What `joint` compiles, by other processes (solvers/compiling.py): the replay, and the rest."""

from __future__ import annotations

import sys

import numpy as np

from ....graphs.compiled import is_compiled
from ....graphs.generators import chain
from ....graphs.machine import Machine
from ....planner.replay.clock import TURNS
from ....planner.replay.replay import UNASKED, figures_for, replay
from ....planner.residency.assembly import assemble
from ....planner.schedule.sequence import in_plain_mode
from ...compiling import COMPILING, Code, compile_apart
from ...problem import Options
from .fill import fill
from .state import State


def load(options: Options) -> None:
    """Have the compiled code at hand, so that it takes no time from the search. Raises KeyboardInterrupt
    where it is not, and the answer is wanted at once."""
    if assemble.signatures and replay.signatures:  # pyright: ignore[reportFunctionMemberAccess]
        return
    compile_apart(CODES, options.report, options.cancelled)
    if not all(code.at_hand() for code in CODES):
        if options.cancelled():
            raise KeyboardInterrupt
        options.report(COMPILING)
    for part in PARTS.values():
        part(_state())


def _state() -> State:
    graph = chain(2)
    return State(graph, Machine(), 1, in_plain_mode(range(len(graph.operations))))


def _compile_replay(state: State) -> None:
    steps, starts = np.empty((0, 3), np.int64), np.zeros(len(state.graph.tensors), np.uint8)
    replay(state.instance, steps, starts, figures_for(state.instance), UNASKED, TURNS)


def _compile_steps(state: State) -> None:
    state.steps(1.0, 0.0)
    fill(state, state.absences, 1.0)


PARTS = {"replay": _compile_replay, "steps": _compile_steps}

CODES = (
    Code(lambda: is_compiled(replay), __name__, "replay", 8.0),
    Code(lambda: is_compiled(assemble), __name__, "steps", 3.0),
)

if __name__ == "__main__":
    PARTS[sys.argv[1]](_state())
