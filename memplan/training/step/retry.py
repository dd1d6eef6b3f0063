"""Out of memory in spite of a plan: the iteration is repeated by a plan for fewer bytes.

The device may have less memory than the budget says: other processes use it, or it is fragmented. After most
failures the iteration is as if it had not begun (steps/execute.py). Then nothing is lost: the same
graph is solved for fewer bytes, and the same batch is trained on, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...graphs.graph import Graph
from ...planner.device_memory import DeviceMemory
from ...runtime.run.recovery import UNDONE
from ...solvers.problem import InfeasibleError
from ...steps.execute import PlannedStep
from ...torch_support.out_of_memory import is_out_of_memory
from ...torch_support.unsupported import warn_user

SHARES = (0.95, 0.9, 0.8)
"""Shares of the budget of the plan that failed first, in the order in which they are tried."""

Smaller = Callable[[Any, int], Any]
"""Makes a plan for the same iteration within so many bytes. Raises InfeasibleError."""

Around = Callable[[Graph, int], DeviceMemory]
"""States the memory of the whole loop around so many bytes of a plan."""

Planned = TypeVar("Planned", bound=PlannedStep)
Result = TypeVar("Result")


def with_less(
    step: Planned, iterate: Callable[[Planned], Result], smaller: Smaller, around: Around
) -> Result:
    """Run an iteration, repeated with smaller and smaller budgets if it runs out of memory.

    iterate: runs the iteration by the step, or by one that `smaller` made.
    Raises the error of the last try. Only errors that left the iteration as if it had not begun are retried.
    """
    budget = step.budget
    for share in SHARES:
        try:
            return iterate(step)
        except Exception as error:
            # Without the note some weights may be updated already: a repeat would update them twice.
            if budget is None or not is_out_of_memory(error) or UNDONE not in getattr(error, "__notes__", ()):
                raise
            less = int(budget * share)
            try:
                step = smaller(step, less)
            except InfeasibleError as none:
                error.add_note(f"for {share:.0%} of its bytes there is no plan either: {none}")
                raise error from None
        assert step.graph is not None
        text = f"out of memory in an iteration; it is repeated by a plan for {share:.0%} of its bytes"
        warn_user(f"{text}, within {around(step.graph, less)}")
    return iterate(step)
