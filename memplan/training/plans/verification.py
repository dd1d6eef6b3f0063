"""Plans compared with eager PyTorch: on the batches that train first, or before them.

    verify=None     the first iterations of a plan that was not compared before are eager PyTorch's as well,
                    on the same batches (profiling/compare/batch.py). So training begins at once.
    verify=True     each plan, before its first iteration, on the inputs that it was made for
    verify=False    never

A plan on the path for torch.compile is one for all values of a batch, by which eager PyTorch's code may
decide. So it is compared once more before a batch whose masks or whole numbers let it decide otherwise, but
in updates over several batches.

Plans that move tensors, parts of a larger graph, compiled operations, CUDA graphs, several processes and
forward passes are compared before their first iteration: an iteration of these goes on in the next one, or
has no eager counterpart by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from ...graphs.errors import InputError, MemplanError
from ...graphs.machine import Machine
from ...graphs.units import format_bytes
from ...guards.unchanged import unchanged
from ...model.iteration import Iteration, tensors_in
from ...planner.baseline import baseline
from ...planner.bounds import minimum_memory
from ...planner.simulator.simulate import simulate
from ...profiling.compare.batch import BatchComparison
from ...profiling.compare.cost import Cost, EagerCost, below_baseline, worse_than_eager
from ...profiling.compare.verdict import (
    NOT_COMPARED,
    as_source,
    compared,
    has_memory_for_eager,
    warning,
)
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.out_of_memory import is_out_of_memory
from ...torch_support.unsupported import warn_user
from ..options import Options
from .plan_cache import Plan
from .training_log import LoopAccount, TrainingLog

_WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

_Decided = tuple[tuple[str, bool, bool], ...]
"""Of each mask and input of whole numbers: its name, whether all are other than 0, and whether any is."""


def _decided(iteration: Iteration) -> _Decided:
    """Return what code commonly decides by in a batch: `mask.all()`, `mask.any()`."""
    inputs = tensors_in(iteration.inputs).items()
    return tuple(
        (name, bool(x.all()), bool(x.any()))
        for name, x in inputs
        if x.dtype in _WHOLE and x.layout is torch.strided
    )


@dataclass
class _Waiting:
    """A plan whose first iterations are to be compared.

    comparison: shared by plans of the same calls, for other shapes: what is left of it is left for all.
    vouching: notes on disk that it was found equal; None if that is not to be noted.
    weighs: whether it may be refused because eager PyTorch takes less.
    in_turn: steps to compare one after the other, see `compare`.
    noted: whether the report says what eager PyTorch takes.
    """

    plan: Plan
    comparison: BatchComparison
    cost: EagerCost
    vouching: Callable[[], None] | None
    weighs: bool
    in_turn: Sequence[PlannedStep] | None
    noted: bool = False


@dataclass
class Verification:
    """The comparisons of a step's plans with eager PyTorch.

    machine_of: returns a plan's machine.
    in_turn_of: returns the steps to compare one after the other, None for the step alone.
    waiting: the plans that are compared on the batches that train first.
    decided: of plans on the path for torch.compile, what code could decide by the batches they were compared
        with.
    """

    options: Options
    book: TrainingLog
    machine_of: Callable[[Plan], Machine | None]
    in_turn_of: Callable[[Iteration, PlannedStep], Sequence[PlannedStep] | None]
    waiting: WeakKeyDictionary[PlannedStep, _Waiting] = field(
        default_factory=WeakKeyDictionary[PlannedStep, _Waiting]
    )
    decided: WeakKeyDictionary[PlannedStep, set[_Decided]] = field(
        default_factory=WeakKeyDictionary[PlannedStep, "set[_Decided]"]
    )

    def can_wait(self, iteration: Iteration, step: PlannedStep, plan: Plan) -> bool:
        """Tell whether the plan can be compared on the batches that train first."""
        program = plan.program
        alone = iteration.purpose == "train" and iteration.processes is None
        updates = iteration.updates
        # First values of averages, and scales that skip an update, go from batch to batch of an update.
        whole = updates is None or not iteration.accumulates or not (updates.ema or iteration.scaler)
        simple = not plan.rounds and not self.options.cuda_graph and step.cycle is None
        # Values that decide, or that code keeps, may be others in the next iteration: it is tried before.
        # Those of a batch are compared before each iteration anyway, and none changes it.
        fixed = (program.used is None or program.used.of_inputs) and program.host_part is None
        return self.options.verify is None and alone and whole and simple and fixed

    def wait(
        self,
        iteration: Iteration,
        step: PlannedStep,
        plan: Plan,
        vouching: Callable[[], None] | None,
        like: Sequence[PlannedStep],
        in_turn: Sequence[PlannedStep] | None,
        *,
        weighs: bool,
    ) -> None:
        """Have the plan compared on the batches that train first.

        like: steps with the same calls, which are waiting too.
        in_turn: see `compare`.
        """
        if not has_memory_for_eager(plan.program, plan.graph):
            warn_user(NOT_COMPARED)
            return
        comparison = self.waiting[like[-1]].comparison if like else BatchComparison(iteration)
        # With updates the first iteration makes the states, which are counted as resident. A batch of an
        # update over several has no cost of an iteration.
        measured = 1 if iteration.updates is None else 2 if in_turn is None else 0
        cost = EagerCost(plan.program, measured)
        self.waiting[step] = _Waiting(
            plan=plan, comparison=comparison, cost=cost, vouching=vouching, weighs=weighs, in_turn=in_turn
        )

    def before_training(
        self,
        iteration: Iteration,
        step: PlannedStep,
        plan: Plan,
        in_turn: Sequence[PlannedStep] | None,
        loop: LoopAccount,
        *,
        weighs: bool,
    ) -> bool:
        """Compare iterations that leave no trace, and tell whether the result may be noted on disk.

        in_turn: see `compare`.
        loop: what knows the memory outside of the plan.
        weighs: whether the plan may be refused because eager PyTorch takes less.

        Raises DifferenceError, and InputError for a plan that is worse than eager PyTorch.
        """
        self._decides_anew(iteration, step)
        same = compared(iteration, step, plan.graph, in_turn, plan.compiled)
        if same is not None and same.eager is not None and weighs:
            self._weigh(iteration, step, plan, same.eager, loop)
        if same is not None and same.compiled is not None:
            self.book.remark("compare", same.compiled)
        line = warning(as_source(same))
        if line is not None:
            warn_user(line)
        return same is not None and same.steady and line is None

    def iterate(
        self, iteration: Iteration, step: PlannedStep, run: Callable[[], IterationResult], loop: LoopAccount
    ) -> IterationResult:
        """Run an iteration by the plan, with eager PyTorch's before it if it is one of the plan's first.

        Raises what `before_training` raises. All is then as before.
        """
        waiting, begun = self.waiting.get(step), False
        anew = self.options.verify is not False and self._decides_anew(iteration, step)
        if waiting is None:
            if anew:
                in_turn = self.in_turn_of(iteration, step)
                self.before_training(iteration, step, self.book.plan(step), in_turn, loop, weighs=False)
            return run()

        def planned() -> IterationResult:
            nonlocal begun
            eager = waiting.cost.cost
            if not waiting.noted and eager is not None:
                waiting.noted = True
                peak = format_bytes(loop.around(waiting.plan.graph, eager.peak_bytes).total)
                self.book.note(step, f"iterations compared with eager PyTorch's, which take {peak}")
                if waiting.weighs:
                    self._weigh(iteration, step, waiting.plan, eager, loop)
            begun = True
            return run()

        try:
            outcome = waiting.comparison.iterate(iteration, step, waiting.cost, planned)
        except Exception as error:
            if begun:
                raise
            if not is_out_of_memory(error):
                _refused_by_plan(iteration, step, run)
                raise
            del self.waiting[step]
            warn_user(NOT_COMPARED)
            return run()
        if outcome is not None:
            steady, done = waiting.comparison.steady, not waiting.comparison.left
        else:  # eager may differ from itself, or be equal another way
            steady = self.before_training(iteration, step, waiting.plan, waiting.in_turn, loop, weighs=False)
            outcome, done = run(), True
        # A plan for fewer bytes that has replaced this one meanwhile is another than was compared.
        if done and step in self.waiting and steady and waiting.vouching is not None:
            waiting.vouching()
        if done:
            for other in [x for x, each in self.waiting.items() if each.comparison is waiting.comparison]:
                del self.waiting[other]
        return outcome

    def _decides_anew(self, iteration: Iteration, step: PlannedStep) -> bool:
        """Note a batch of a plan on the path for torch.compile. Tell whether its code could decide otherwise
        than by those before.
        """
        if not step.program.compiling:
            return False
        known, now = self.decided.setdefault(step, set[_Decided]()), _decided(iteration)
        if now in known:
            return False
        known.add(now)
        return True

    def _weigh(
        self, iteration: Iteration, step: PlannedStep, plan: Plan, eager: Cost, loop: LoopAccount
    ) -> None:
        """Warn if eager PyTorch takes less memory than the baseline.

        Raises InputError if the plan is worse than eager PyTorch in memory and in time.
        """
        machine = self.machine_of(plan)
        peak = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures.peak
        least = minimum_memory(plan.graph, machine)
        outside = loop.around(plan.graph, peak).total - peak
        if line := worse_than_eager(iteration, step, peak=peak, eager=eager, outside=outside, least=least):
            raise InputError(line)
        if line := below_baseline({"peak": eager.peak_bytes}, baseline(plan.graph).peak, outside):
            warn_user(line)


def _refused_by_plan(iteration: Iteration, step: PlannedStep, run: Callable[[], IterationResult]) -> None:
    """Run an iteration that eager PyTorch has failed in, and put all back. Raises MemplanError if the plan
    refuses it: it says best what was changed of module or optimizer.

    Any other error of the plan's is eager's, raised once more.
    """
    try:
        with unchanged(iteration, step.program.device):
            run()
    except MemplanError:
        raise
    except Exception:
        return
