"""memplan.optimize_module: a module that is called as part of a larger graph, within a budget.

    z ─▶ G ─▶ planned D ─▶ the caller's loss        forward half: activations that the schedule keeps
    ◀─  ◀──   ◀───────   ◀─ loss.backward()         backward half: gradients of inputs and parameters

Both halves are one plan.
"""

# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..graphs.errors import InputError, MemplanError, MismatchError
from ..model.arguments import parse_inputs, validate_module
from ..model.iteration import Inputs, Iteration, tensors_in, with_tensors
from ..model.processes import parallel_of
from ..program.outputs import Wanted
from ..steps.execute import PlannedStep
from ..steps.part import Begun, PlannedPart
from ..torch_support.in_place_collectives import IN_PART, CollectiveError
from ..torch_support.interrupts import deferred_signals, open_to_signals
from ..torch_support.torch_processes import call_in_parallel
from ..torch_support.torch_saved_hooks import preserving_hooks_off
from .accelerated import refuse_offloading_hooks
from .checkpoints import checkpoint
from .converters import read_count, read_dtype, read_outputs
from .option import option, takes
from .options import Options, PlanningOptions
from .plans.front_end import CollectivesFoundError
from .plans.plan import Planner
from .plans.training_log import TrainingLog
from .step.evaluation import Forward
from .step.executor import Executor
from .step.step import Step


class ModuleOptions(PlanningOptions):
    """Options of `optimize_module`."""

    calls: int = option(
        converter=read_count,
        text=(
            "Number of calls whose backward may wait at the same time, as in loss(D(real)) + loss(D(fake)). "
            "The budget is for all of them together."
        ),
        default=1,
    )
    return_outputs: Wanted = option(
        converter=read_outputs,
        text=(
            "Tensors of the module's output that a call returns: True for all, or names like 'logits' and "
            "'hidden_states.0'; the others are None. Name those that your loss uses: the gradients of all "
            "are part of the plan."
        ),
        default=True,
    )
    autocast: torch.dtype | None = option(
        converter=read_dtype, text="Type for torch.autocast of forward.", default=None
    )


@takes(ModuleOptions, example='budget="12GB"')
def optimize_module(module: Any, inputs: Any, options: ModuleOptions) -> PlannedModule:
    """Plan a module's forward and backward within a memory budget, for a loss that your own code computes.

    The result is called as the module is, anywhere in a graph of autograd: after other modules, before
    others, with inputs that require a gradient, for several losses::

        discriminator = memplan.optimize_module(D, real, budget="4GB")
        loss = loss_fn(discriminator(G(noise)), ones)
        loss.backward()

    The budget is for the module: the activations that it keeps between forward and backward, its gradients,
    outputs and their gradients count. What your own code computes in between is in addition.

    Args:
        module (torch.nn.Module): the module, already on the training device and in the intended mode. Of a
            DistributedDataParallel the module inside is planned; buffers and gradients are its own matter.
        inputs (Tensor, tuple or dict): an example of its inputs: one tensor, a tuple of positional arguments
            or a dict of keyword arguments. Inputs that require a gradient get one. A share as budget is of
            what this example takes.

    Returns:
        A PlannedModule, called with each batch.

    Raises:
        InputError: an option or a module that is not valid.
        TraceError: a module that can't be traced.
        InfeasibleError: no schedule within the budget.
        OutOfMemoryError: one operation of this batch finds no memory to be planned in.
        DifferenceError: the plan does not compute what eager PyTorch computes.
    """
    validate_module(module)
    parallel = parallel_of(module)
    module = module if parallel is None else parallel.module
    refuse_offloading_hooks(module)
    if parallel is not None and parallel.static_graph:
        raise InputError(
            "DistributedDataParallel's static_graph=True does not average the gradients of a module planned "
            "in a larger graph: leave static_graph out"
        )
    if parallel is not None and options.machine is not None:
        raise InputError(
            "machine= does not go with a DistributedDataParallel in a larger graph, which holds the weights "
            "that would be offloaded: leave machine= out"
        )
    if options.pad_values is not None:
        raise InputError("pad_values: a planned module's outputs would be padded too: pad before the call")
    if options.states is not None:
        raise InputError(
            "states: the budget of a planned module is its own, without the optimizer's states: leave it out"
        )
    if options.machine is not None and options.calls > 1:
        raise InputError(
            "machine= goes with calls=1: offloaded weights serve one call at a time. Leave machine= out, or "
            "call backward() on each loss before the next call"
        )
    iteration = Iteration(
        module,
        _detached(parse_inputs(inputs)),
        outputs=options.return_outputs,
        purpose="part",
        autocast=options.autocast,
    )
    planner = Planner(options.extended(Options), TrainingLog(options.progress), calls=options.calls)
    with deferred_signals(), open_to_signals(first_interrupt=True):
        try:
            return PlannedModule(Executor(iteration, planner, None), parallel)
        except (CollectiveError, CollectivesFoundError) as error:
            if parallel is None:
                raise
            called = getattr(error, "called", "") or "the module communicates"
            raise InputError(f"{called}, and {IN_PART}") from None


class PlannedModule(Step):
    """A module within a memory budget, as `memplan.optimize_module` returns it.

    A call returns what the module returns. Its tensors go on in autograd: their backward computes the
    gradients of inputs and parameters that require one. Under `torch.no_grad()`, and if nothing requires a
    gradient, a call runs forward alone, in the mode in which the module is.

    Example::

        planned = memplan.optimize_module(model, x, budget="4GB")
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(planned(x), y).backward()
            optimizer.step()
        print(planned.report())
    """

    def __init__(self, executor: Executor, parallel: DistributedDataParallel | None) -> None:
        """Set up a planned module. parallel: the one that has it inside, None if none has."""
        super().__init__(executor)
        self._parallel = parallel
        # Weak: a call whose outputs were dropped has no backward to wait for.
        self._waiting: WeakSet[Begun] = WeakSet()
        self._alone_forward: dict[Any, Forward] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run forward on a batch; backward is autograd's.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments.

        Returns:
            What the module returns.

        Raises:
            MismatchError: the batch or the module differs from the planned one in more than shapes, modes and
                what requires a gradient, or too many calls wait for their backward.
            InfeasibleError: there is no schedule for the batch within the budget.
        """
        if self._parallel is not None:
            return call_in_parallel(self._parallel, self._called, arguments, keywords)
        return self._called(*arguments, **keywords)

    def _called(self, *arguments: Any, **keywords: Any) -> Any:
        executor = self._executor
        checkpoint.check_loaded(executor.module)
        with self._alone, preserving_hooks_off():
            given = self.plans[0].given(arguments, keywords)
            tensors = list(tensors_in(given).values())
            inputs = _detached(given)
            if not (torch.is_grad_enabled() and self._requires_gradient(tensors)):
                return self._forward_pass(inputs)
            self._check_waiting()
            plan, inputs = executor.plans.serving(inputs)
            with deferred_signals():
                begun = executor.repeated(plan, inputs, partial(_begun, inputs))
            self._waiting.add(begun)
            step = begun.step
            executor.book.counted(step)
            named = tensors_in(given)
            wanted = [*(named[name] for name in step.program.input_gradients), *begun.parameters]
            outputs = _Half.apply(begun, self, *wanted)
            begun.nodes = ()
            return step.program.output.nest(dict(zip(step.program.outputs, outputs, strict=True)))

    def evaluate(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Raise MismatchError: a planned module has no loss."""
        raise MismatchError("a planned module has no loss: call predict, which runs forward in eval mode")

    def backward(self, begun: Begun, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run the second half; autograd calls it.

        Returns the gradients of inputs, then of parameters, None for those without one.
        """
        step = begun.step
        with self._alone, deferred_signals():
            named = dict(zip(step.program.outputs, cotangents, strict=True))
            outcome = step.finish(begun, named)
        self._waiting.discard(begun)
        return [
            *(outcome.input_gradients.get(name) for name in step.program.input_gradients),
            *(outcome.gradients.get(name) for name in step.program.gradients),
        ]

    def _requires_gradient(self, inputs: Sequence[Tensor]) -> bool:
        return any(tensor.requires_grad for tensor in (*inputs, *self._executor.module.parameters()))

    def _forward_pass(self, inputs: Inputs) -> Any:
        """Run forward alone, in the mode in which the module is."""
        executor, module = self._executor, self._executor.module
        mode = (
            *(part.training for part in module.modules()),
            *(x.requires_grad for x in module.parameters()),
        )
        # Dropout and batch norm trace another program in each mode.
        if mode not in self._alone_forward:
            self._alone_forward[mode] = Forward(
                executor.iteration, "predict", executor.planner, executor.plans, mode=_same_mode
            )
        return self._alone_forward[mode](inputs)[1]

    def _check_waiting(self) -> None:
        """Refuse a call for whose activations the budget has no room."""
        waiting = sum(begun.running is not None for begun in self._waiting)
        if waiting >= self._executor.planner.calls:
            raise MismatchError(
                f"calls of this planned module that wait for backward(): {waiting}, and the budget has room "
                "for no other: call backward() before the next call, drop outputs that need none, or plan "
                f"with optimize_module(…, calls={waiting + 1})"
            )


def _begun(inputs: Inputs, step: PlannedStep) -> Begun:
    return cast("PlannedPart", step).begin(inputs)


def _same_mode(_module: nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


class _Half(torch.autograd.Function):
    """A planned module in the caller's graph."""

    @staticmethod
    def forward(ctx: Any, begun: Begun, owner: PlannedModule, *_wanted: Tensor) -> tuple[Tensor, ...]:
        ctx.begun, ctx.owner = begun, owner
        # None, not zeros, for outputs that the loss does not use: zeros would take their bytes.
        ctx.set_materialize_grads(False)
        # Others than those that the code holds: these would hold it, and it these, for ever.
        outputs = {name: tensor.detach() for name, tensor in begun.outputs.items()}
        begun.outputs = {}
        others = (tensor for name, tensor in outputs.items() if name not in begun.step.differentiable)
        ctx.mark_non_differentiable(*others)
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise MemplanError(
                "a planned module has no second derivative: leave create_graph=True out, or, for a gradient "
                "penalty as WGAN-GP's, call the module itself"
            )
        return None, None, *ctx.owner.backward(ctx.begun, cotangents)


def _detached(inputs: Any) -> Any:
    """Return the inputs as leaves, on the same memory, which require a gradient as they do."""
    tensors = tensors_in(inputs).items()
    leaves = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in tensors}
    return with_tensors(inputs, leaves)
