"""The comparison of planned iterations with eager PyTorch's on the batches that train.

    eager's iteration ──▶ what it makes, in host memory ──▶ undone
    the planned one   ──▶ the same bits? ──▶ its results are used
                                └─ no ──▶ undone: verdict.py says why they differ, or that they may

A batch costs one iteration of eager more. Only the planned one is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from ..model.iteration import Iteration
from ..model.python_state import PythonState
from ..model.unchanged import Before, unchanged
from ..run.execute import Outcome, PlannedStep
from .comparison import ITERATIONS, difference, everything, left_by
from .cost import EagerCost
from .eager import run_eager


class BatchComparison:
    """The comparison of a plan's first iterations, one with each batch.

    left: number of iterations that are still to be compared.
    steady: of eager's iterations so far, see Comparison.
    """

    def __init__(self) -> None:
        self.left = ITERATIONS
        self.steady, self._drawn = False, False
        self._after: PythonState | None = None

    def iterate(
        self,
        iteration: Iteration,
        step: PlannedStep,
        cost: EagerCost,
        run: Callable[[], Outcome],
    ) -> Outcome | None:
        """Run an iteration by the plan, and compare it with eager's on the same inputs.

        cost: measures eager's.
        run: runs it by the plan, after eager's.

        Returns its outcome, None if they differ. Then, and if either fails, all is as before.
        """
        with unchanged(iteration, step.program.device) as before:
            expected = self._eager(iteration, step, before, cost)
            before.put_back()
            outcome = run()
            if not difference(expected, everything(iteration, step.program, [outcome])).equal:
                return None
            before.keep()
        if not outcome.infinite:  # else nothing was updated: another batch shows more
            self.left -= 1
        return outcome

    def _eager(
        self, iteration: Iteration, step: PlannedStep, before: Before, cost: EagerCost
    ) -> Mapping[str, Tensor]:
        """Run eager's iteration, and return all that it makes or changes, in host memory.

        What its last iteration has left in Python's state, the next one finds, as in a loop of eager's.
        """
        if self._after is not None:
            self._after.put_back()
        since = self._after or before.state
        outcome = left_by(iteration, step.program, cost.run(partial(run_eager, iteration)))
        made = everything(iteration, step.program, [outcome], before.changed())
        self._drawn = self._drawn or since.drawn()
        self.steady = not (self._drawn or since.changes())
        if not self.steady:
            self._after = PythonState(iteration, tensors=True)
        return {name: tensor.to("cpu") for name, tensor in made.items()}


def train_eagerly(iteration: Iteration, step: PlannedStep) -> Outcome:
    """Run an iteration of eager PyTorch for good, and return what the plan's would have returned."""
    outcome = left_by(iteration, step.program, run_eager(iteration))
    step.output = step.program.output.nest(outcome.outputs)
    return outcome._replace(parameters=step.parameters(outcome.gradients))
