"""Batches for which no plan can be made, in a training that has plans: eager PyTorch runs them, if it fits.

    batch ──▶ no plan for its shape or values ──▶ none can be made: the trace is refused, or is not eager's
                                                      └──▶ no larger than one that fits if all is kept?
                                                              ├── yes: eager PyTorch, with one warning
                                                              └── no: the refusal

So do batches whose values, not shapes, need another plan (which rows a mask picks, lengths), once three such
plans have taken more time than they have saved, if eager PyTorch fits the budget.

While the user's profiler records, no plan can be measured: until it ends, such batches are eager PyTorch's
whatever they take, unless plans keep tensors off the device.

A batch of the same form is not traced once more. Values may decide what a batch takes, and eager PyTorch
keeps what the code still names; so the first one of each form is measured, and if it took more the next ones
are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from math import inf

from ...devices.device.device import Stamp
from ...devices.measuring.live_bytes import ProfilerOnError, can_count, live_peak
from ...graphs.errors import DifferenceError, InputError, MemplanError, OutOfMemoryError
from ...graphs.graph import Graph, Kind
from ...graphs.units import format_bytes
from ...model.iteration import Inputs, Iteration, tensors_in
from ...planner.baseline import baseline
from ...profiling.compare.eager import run_eager
from ...profiling.compare.peaks import resident_bytes
from ...steps.execute import IterationResult, PlannedStep
from ...steps.inputs import OtherShapeError, UsedValuesError
from ...torch_support.unsupported import TraceError, warn_user
from ..plans.plans import Plans
from ..plans.value_plans import ENOUGH
from .retry import Around

_TIMES = 8
"""Times of batches that may wait to be read."""


class UnrepeatedValuesError(MemplanError):
    """Error of a batch whose plan would be used once, and take longer than eager PyTorch's iteration."""


REASONS = (TraceError, DifferenceError, InputError, OutOfMemoryError, UnrepeatedValuesError)
"""Errors after which eager PyTorch can run the batch: not those of batches that it would not take either."""


class EagerBatches:
    """The batches of a step that eager PyTorch runs.

    iteration: the step's, without inputs.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        several = iteration.updates is not None and iteration.accumulate > 1  # the sums are the plans'
        self._possible = iteration.trains and iteration.alone and not several
        self._forms: dict[Hashable, str] = {}
        self._said = self._said_profiled = self._said_values = self._unrepeated = False
        self._known, self._unmeasured = set[Hashable](), set[Hashable]()
        self._times: list[tuple[Stamp, Stamp]] = []
        self._seconds = inf
        self._exceeded = False

    def check_new(self, inputs: Inputs) -> None:
        """Raise TraceError if no plan could be made for a batch of this form."""
        if self._forms and (why := self._forms.get(_form(inputs))) is not None:
            raise TraceError(why)

    def check_values(
        self, inputs: Inputs, refused: OtherShapeError, plans: Plans, planned: Callable[[], float]
    ) -> None:
        """Raise UnrepeatedValuesError if another plan by values would not pay, and eager PyTorch fits.

        refused: names the values. A batch of another shape has other values, too, once others ran eagerly.
        planned: returns the seconds of an iteration by a plan.
        """
        shape = type(refused) is OtherShapeError and plans.steps[0].program.used is not None
        by_values = isinstance(refused, UsedValuesError) or (self._unrepeated and shape)
        if not by_values or plans.by_values.count < ENOUGH:
            return
        if not self._exceeded and self._possible and any(_fits(step, inputs) for step in plans.steps):
            saved = 0.0 if self.seconds == inf else self.seconds - planned()
            if not plans.by_values.pays(saved):
                raise UnrepeatedValuesError(f"{refused}: {plans.by_values}")
        elif not self._said_values:
            self._said_values = True
            why = "does not fit the budget" if self._possible else "can't run a batch among planned ones here"
            warn_user(
                f"{refused}: {plans.by_values}, and eager PyTorch {why}. Plan the module "
                "before that line (memplan.optimize_module), or give a budget that holds all activations"
            )

    @property
    def seconds(self) -> float:
        """Return the least seconds that a batch has taken so far; ∞ before any is timed."""
        passed = [times for times in self._times if times[1].query()]
        self._times = [times for times in self._times if times not in passed]
        self._seconds = min([self._seconds, *(begun.elapsed_time(end) / 1000 for begun, end in passed)])
        return self._seconds

    def take(self, inputs: Inputs, error: MemplanError, steps: Iterable[PlannedStep]) -> None:
        """Take over a batch for which no plan can be made. Raises the error if it may not fit.

        error: why no plan can be made.
        steps: the plans that there are.
        """
        steps = list(steps)
        whole = self._possible and all(each.cycle is None for each in steps)  # all tensors are on the device
        if whole and isinstance(error, ProfilerOnError):
            if not self._said_profiled:
                self._said_profiled = True
                warn_user(f"{error}; until then eager PyTorch runs them, and may take more than the budget")
            return
        if self._exceeded or not (self._possible and any(_fits(step, inputs) for step in steps)):
            raise error
        self._unrepeated = self._unrepeated or isinstance(error, UnrepeatedValuesError)
        if (form := _form(inputs)) not in self._known:
            self._known.add(form)
            self._unmeasured.add(form)
        if not isinstance(error, UnrepeatedValuesError):  # other values may have a plan
            self._forms.setdefault(form, str(error))
        if not self._said:
            self._said = True
            warn_user(f"{error}; batches like this one run as eager PyTorch runs them, which fits the budget")

    def run(self, inputs: Inputs, plan: PlannedStep, around: Around) -> IterationResult:
        """Run an iteration by eager PyTorch. What plans have offloaded must be back.

        plan: any of the step's, which says what gradients are left to the loop.
        """
        run = partial(run_eager, self._iteration._replace(inputs=inputs))
        if (form := _form(inputs)) in self._unmeasured and can_count(plan.program.device):
            self._unmeasured.discard(form)
            measured = live_peak(run, plan.program.device)
            outcome = measured.result
            self._weigh(resident_bytes(plan.program) + measured.peak_bytes, plan, around)
        else:
            begun = plan.device.stamp()
            outcome = run()
            self._times = [*self._times[-_TIMES:], (begun, plan.device.stamp())]
        left = outcome.gradients  # those of updates are used up
        if self._iteration.updates is not None:
            left = {name: gradient for name, gradient in left.items() if name in plan.program.gradients}
        return outcome._replace(gradients=left, parameters=plan.parameters(left), saved=plan.saved(inputs))

    def _weigh(self, peak: int, plan: PlannedStep, around: Around) -> None:
        """Refuse further batches if this one has taken more than the budget. peak: bytes that it took."""
        if plan.budget is not None and plan.graph is not None and peak > plan.budget:
            whole, limit = (around(plan.graph, size) for size in (peak, plan.budget))
            self._exceeded = True
            warn_user(
                f"eager PyTorch took {format_bytes(whole.total)} for a batch without a plan, more than the "
                f"budget of {limit}: further ones are refused"
            )


def _fits(step: PlannedStep, inputs: Inputs) -> bool:
    """Tell whether an iteration on these inputs takes no more than one on a plan's, and that fits the plan's
    budget if everything is kept.
    """
    graph, program = step.graph, step.program
    if graph is None or step.budget is None:
        return False
    known = {name: program.values[value].dtype for name, value in program.inputs.items()}
    if known != {name: x.dtype for name, x in tensors_in(inputs).items()}:
        return False  # eager PyTorch may not take such a batch either
    planned = sum(program.storages[program.values[value].storage].bytes for value in program.inputs.values())
    given = sum(x.nbytes for x in tensors_in(inputs).values() if x.device == program.device)
    return given <= planned and baseline(graph).peak + _held_gradients(graph) <= step.budget


def _held_gradients(graph: Graph) -> int:
    """Return the bytes of gradients that updates free one by one in a plan, and eager PyTorch holds
    together.
    """
    held = graph.tensors.kind == Kind.PARAMETER_GRADIENT
    held[list(graph.results)] = False  # the iteration leaves them, and the baseline has them
    return int(graph.tensors.bytes[held].sum())


def _form(inputs: Inputs) -> Hashable:
    return tuple((name, x.shape, x.dtype) for name, x in tensors_in(inputs).items())
