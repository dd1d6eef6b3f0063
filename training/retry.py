"""Out of memory in spite of a plan: the iteration again, by a plan for less.

The device may have less than the budget says: others are on it, or its memory is in pieces. An iteration
that has failed is mostly as if it had not begun (runtime/run/execute.py). Then nothing is lost: the same
graph is solved for less, and the same batch trained on, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from ..planner.budget import spelled
from ..runtime.compare.verdict import is_out_of_memory
from ..runtime.refusals import warn_user
from ..runtime.run.execute import Outcome, PlannedStep
from ..runtime.run.recovery import UNDONE
from ..solvers.problem import InfeasibleError

SHARES = (0.95, 0.9, 0.8)
"""Of the bytes of the plan that has failed first."""

Smaller = Callable[[PlannedStep, int], PlannedStep]
"""The same iteration by a plan for so many bytes. Raises InfeasibleError."""


def with_less(step: PlannedStep, iterate: Callable[[PlannedStep], Outcome], smaller: Smaller) -> Outcome:
    """iterate: by the step, or by one of those that `smaller` makes. Raises what it raises last."""
    budget = step.budget
    for share in SHARES:
        try:
            return iterate(step)
        except Exception as error:
            if budget is None or not is_out_of_memory(error) or UNDONE not in getattr(error, "__notes__", ()):
                raise
            less = int(budget * share)
            try:
                step = smaller(step, less)
            except InfeasibleError as none:
                error.add_note(f"for less, {spelled(less)}, there is no plan either: {none}")
                raise error from None
        text = f"out of memory in an iteration; it is repeated by a plan for {share:.0%} of the budget, "
        warn_user(f"{text}{spelled(less)}")
    return iterate(step)
