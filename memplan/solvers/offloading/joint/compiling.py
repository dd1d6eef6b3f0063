"""The compiled code of `joint`, built in worker processes (workers/precompile.py): the replay, and the
rest."""

from __future__ import annotations

import numpy as np

from ....graphs.compiled import is_compiled
from ....graphs.generators import chain
from ....graphs.machine import Machine
from ....planner.replay.clock import MAX_ITERATIONS
from ....planner.replay.replay import UNASKED, figures_for, replay
from ....planner.residency.assembly import assemble
from ....planner.schedule.sequence import in_default_mode
from ...problem import Options
from ...workers.precompile import COMPILING, Code, precompile
from .fill import fill
from .state import State


def load(options: Options) -> None:
    """Load the compiled code before the search, so that compiling takes none of its time.

    Raises KeyboardInterrupt if it is not compiled yet and an answer is wanted at once.
    """
    if assemble.signatures and replay.signatures:  # pyright: ignore[reportFunctionMemberAccess]
        return
    precompile(CODES, options.report, options.cancelled)
    if not all(code.available() for code in CODES):
        if options.cancelled():
            raise KeyboardInterrupt
        options.report(COMPILING)
    compile_replay()
    compile_steps()


def _state() -> State:
    graph = chain(2)
    return State(graph, Machine(), 1, in_default_mode(range(len(graph.operations))))


def compile_replay() -> None:
    """Compile the replay."""
    state = _state()
    steps, starts = np.empty((0, 3), np.int64), np.zeros(len(state.graph.tensors), np.uint8)
    replay(state.instance, steps, starts, figures_for(state.instance), UNASKED, MAX_ITERATIONS)


def compile_steps() -> None:
    """Compile what makes steps of a state."""
    state = _state()
    state.steps(1.0, 0.0)
    fill(state, state.intervals, 1.0, state.curve)


CODES = (
    Code(lambda: is_compiled(replay), f"{__name__}:compile_replay", 8.0),
    Code(lambda: is_compiled(assemble), f"{__name__}:compile_steps", 3.0),
)
