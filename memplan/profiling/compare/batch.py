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

from ...guards.python_state import PythonState
from ...guards.unchanged import Before, unchanged
from ...model.accumulated import SUM, accumulated
from ...model.iteration import Iteration
from ...runtime.run.recovery import noted_as_undone
from ...steps.execute import IterationResult, PlannedStep
from .batch_of_update import Place, place_of, places, put_sums, take_sums, without_passing_states
from .comparison import ITERATIONS, difference, everything, left_by
from .cost import EagerCost
from .eager import run_eager


class BatchComparison:
    """The comparison of a plan's first iterations, one with each batch.

    left: places in an update of the batches that are still to be compared.
    steady: of eager's iterations so far, see Comparison.
    """

    def __init__(self, iteration: Iteration) -> None:
        self.left = places(iteration, ITERATIONS)
        self.steady, self._drawn, self._differed = False, False, False
        self._after: PythonState | None = None

    def iterate(
        self,
        iteration: Iteration,
        step: PlannedStep,
        cost: EagerCost,
        run: Callable[[], IterationResult],
    ) -> IterationResult | None:
        """Run an iteration by the plan, and compare it with eager's on the same inputs.

        cost: measures eager's.
        run: runs it by the plan, after eager's.

        Returns its outcome, None if they differ. Then, and if either fails, all is as before.
        """
        place = place_of(iteration)
        if place not in self.left and not self._differed:
            return run()
        with noted_as_undone(), unchanged(iteration, step.program.device) as before:
            expected = self._eager(iteration, step, before, cost, place)
            before.put_back()
            outcome = run()
            found = everything(iteration, step.program, [outcome])
            if not difference(expected, without_passing_states(iteration, found, place)).equal:
                self._differed = True
                return None
            before.keep()
        if not outcome.infinite and place in self.left:  # else nothing was updated: another shows more
            self.left.remove(place)
        return outcome

    def _eager(
        self, iteration: Iteration, step: PlannedStep, before: Before, cost: EagerCost, place: Place
    ) -> Mapping[str, Tensor]:
        """Run eager's iteration, and return all that it makes or changes, in host memory.

        What its last iteration has left in Python's state, the next one finds, as in a loop of eager's.
        """
        if self._after is not None:
            self._after.put_back()
        since = self._after or before.state
        run = partial(run_eager, iteration)
        if iteration.accumulates:
            # Clones: backward adds to them in place.
            sums = {name: total.detach().clone() for name, total in take_sums(iteration).items()}
            run = partial(run, sums, last=place is Place.LAST)
        else:
            sums = dict[str, Tensor]()
        outcome = left_by(iteration, step.program, cost.run(run))
        made = everything(iteration, step.program, [outcome], before.changed())
        made = without_passing_states(iteration, made, place)
        made |= {f"{name}.{SUM}": x for name, x in sums.items() if (name, SUM) in step.program.states}
        self._drawn = self._drawn or since.drawn()
        self.steady = not (self._drawn or since.changes())
        if not self.steady:
            self._after = PythonState(iteration, tensors=True)
        # In host memory: the planned iteration has the device to itself, as in training.
        return {name: tensor.to("cpu") for name, tensor in made.items()}


def train_eagerly(iteration: Iteration, step: PlannedStep) -> IterationResult:
    """Run an iteration of eager PyTorch for good, and return what the plan's would have returned."""
    updates = iteration.updates
    if updates is None or not iteration.accumulates:
        outcome = run_eager(iteration)
    elif place_of(iteration) is Place.LAST:
        outcome = run_eager(iteration, take_sums(iteration))
    else:
        before, parameters = accumulated(updates.optimizer), iteration.module.named_parameters()
        rows = {name: updates.optimizer.state.get(parameter, {}) for name, parameter in parameters}
        sums = {} if before is None else {name: row[SUM] for name, row in rows.items() if SUM in row}
        outcome = run_eager(iteration, sums, last=False)
        put_sums(iteration, sums, before)
    outcome = left_by(iteration, step.program, outcome)
    step.output = step.program.output.nest(outcome.outputs)
    return outcome._replace(parameters=step.parameters(outcome.gradients))
