"""memplan.optimize: a module's training iteration within a budget."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType, MethodType
from typing import Any, ParamSpec, Protocol, cast, overload

from torch import nn

from ..graphs.errors import InputError
from ..model.arguments import parse_inputs, takes_argument, validate_module
from ..model.iteration import (
    TARGETS,
    Arguments,
    Inputs,
    Iteration,
    Updates,
    apart,
    joined,
    tensors_in,
    with_targets,
)
from ..model.processes import Processes, inside
from ..torch_support.interrupts import deferred_signals, open_to_signals
from ..torch_support.torch_fsdp import fsdp_units
from ..updates.catalogue import is_planned
from .accelerated import (
    inside_accelerated,
    refuse_offloading_hooks,
    warn_of_ddp,
    without_accelerate,
)
from .checkpoints.weights import read_weights
from .function import PlannedFunction
from .option import takes
from .option_rules import validate_inference, validate_options
from .options import Options
from .plans.buckets import Buckets, check_ignored, parse_buckets
from .plans.front_end import CollectivesFoundError
from .plans.plan import Planner
from .plans.training_log import TrainingLog
from .ranks.collectives import collective_executor, joint_ranks
from .ranks.sharded import sharded_executor
from .step.executor import Executor
from .step.step import Step
from .step.unplanned import Unplanned

Keywords = ParamSpec("Keywords")


class _Optimize(Protocol[Keywords]):
    """Types of calls of `optimize`."""

    @overload  # a module can be called too
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, module: nn.Module, inputs: Any, /, *_: Keywords.args, **options: Keywords.kwargs
    ) -> Step: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, module: nn.Module, /, *_: Keywords.args, **options: Keywords.kwargs
    ) -> Step: ...
    @overload
    def __call__(
        self, module: Callable[..., Any], inputs: Any, /, *_: Keywords.args, **options: Keywords.kwargs
    ) -> PlannedFunction: ...
    @overload
    def __call__(
        self, module: Callable[..., Any], /, *_: Keywords.args, **options: Keywords.kwargs
    ) -> PlannedFunction: ...
    @overload
    def __call__(
        self, /, *_: Keywords.args, **options: Keywords.kwargs
    ) -> Callable[[Callable[..., Any]], PlannedFunction]: ...


def _with_options(options: Callable[Keywords, Options]) -> Callable[[Any], _Optimize[Keywords]]:
    return cast("Any", takes)(options, example="targets=…, loss_fn=…")


@_with_options(Options)
def optimize(module: Any = None, inputs: Any = None, *, options: Options) -> Any:
    """Plan training iterations of a module, or of a function that computes a loss, within a memory budget.

    Traces and measures the module on the inputs, solves for the fastest schedule within the budget, verifies
    it against eager PyTorch, and returns a callable that replaces forward and backward::

        step = memplan.optimize(model, loss_fn=cross_entropy, optimizer=optimizer, budget="12GB")
        for x, y in loader:
            loss = step(x, targets=y)

    A function of modules and a batch is planned at each call that needs a plan::

        @memplan.optimize(budget="12GB")
        def loss(model, batch): ...

    Args:
        module (torch.nn.Module or function, default None): the model, already on the training device and in
            the intended mode (train() or eval()), or a function that returns the loss. A module in
            DistributedDataParallel is planned by each rank for itself, with gradients averaged; all ranks
            call this at once. None returns a decorator of functions.
        inputs (Tensor, tuple or dict, default None): an example batch: one tensor, a tuple of positional
            arguments or a dict of keyword arguments. None plans the batch of the first call.

    Returns:
        A Step, called with each batch: runs forward and backward, and the update if the optimizer is given.
        With train=False, a step that runs forward alone. For a function, the function as planned.

    Raises:
        InputError: an option that is not valid, or does not go with another.
        TraceError: a module that can't be traced.
        InfeasibleError: no schedule within the budget.
        OutOfMemoryError: one operation of this batch finds no memory to be planned in.
        DifferenceError: the plan does not compute what eager PyTorch computes.
    """
    if not options.train:
        validate_inference(options)
    if module is None:
        return functools.partial(_planned, inputs=inputs, options=options)
    return _planned(module, inputs, options)


def _planned(module: Any, inputs: Any, options: Options) -> Any:
    if isinstance(module, FunctionType | MethodType | functools.partial):
        function = PlannedFunction(module, options, optimize_with)
        return function if inputs is None else function.planned(inputs)
    if inputs is not None:
        return optimize_with(module, inputs, options)
    validate_module(module)
    return Step(Unplanned(module, options, executor_of))


def optimize_with(module: Any, inputs: Any, options: Options) -> Step:
    """Do what `optimize` does, with options that have been read."""
    return Step(executor_of(module, inputs, options))


def executor_of(module: Any, inputs: Any, options: Options) -> Executor:
    """Plan the iterations of a step. Raises MemplanError, see `optimize`."""
    validate_module(module)
    module, processes = inside(module)
    refuse_offloading_hooks(module)
    if not options.train:
        processes = None
    sharded = options.shard is not None or bool(fsdp_units(module))
    if sharded:
        options = options.replaced(optimizer=inside_accelerated(options))
    else:
        options = options.replaced(optimizer=without_accelerate(options))
        warn_of_ddp(processes)
    given = _with_targets(module, parse_inputs(inputs), options)
    optimizer, steps = options.optimizer, options.gradient_accumulation_steps
    planned = optimizer is not None and is_planned(optimizer)
    validate_options(options, module, given, processes, planned=planned, sharded=sharded)
    buckets = parse_buckets(options.pad_values, options.pad_to_lengths, given)
    updates = None
    if planned and optimizer is not None:
        updates = Updates(
            optimizer=optimizer,
            when=options.update,
            clipping=options.max_grad_norm,
            masters=options.master_weights,
            ema=options.ema,
            wide_sums=options.accumulate_dtype is not None,
            early=options.early_updates,
            bucket=options.bucket_size or 0,
            block=options.block_size or 0,
        )
    iteration = Iteration(
        module=module,
        inputs=given,
        loss_fn=options.loss_fn,
        updates=updates,
        outputs=options.return_outputs or not options.train,
        processes=processes,
        purpose="train" if options.train else "predict",
        autocast=options.autocast,
        accumulate=steps if optimizer is not None else 1,
        scaler=options.enabled_scaler,
    )
    if sharded:
        with deferred_signals(), open_to_signals(first_interrupt=True):
            return sharded_executor(iteration, options, processes, buckets, planned=planned)
    ranks = joint_ranks(module)
    while True:  # until all ranks of the groups that a trace finds plan together
        try:
            if ranks is None:
                return _alone(iteration, options, processes, buckets)
            with deferred_signals(), open_to_signals(first_interrupt=True):
                return collective_executor(iteration, options, processes, buckets, ranks, planned=planned)
        except CollectivesFoundError as found:
            ranks = joint_ranks(module, found.groups)


def _with_targets(module: nn.Module, inputs: Arguments, options: Options) -> Inputs:
    """Return the inputs with the targets, which are forward's if it has an argument of this name."""
    if options.targets is None or not takes_argument(module, TARGETS):
        return with_targets(inputs, options.targets)
    positional, named = apart(inputs)
    if TARGETS in named:
        raise InputError("targets are given twice: among the inputs and as targets=")
    return joined(positional, {**named, TARGETS: options.targets})


def _alone(
    iteration: Iteration, options: Options, processes: Processes | None, buckets: Buckets | None
) -> Executor:
    """Plan the iterations of this process, or of one of several that plan for themselves."""
    module, given = iteration.module, iteration.inputs
    if options.weights is not None:
        read_weights(module, options.weights, next(iter(tensors_in(given).values())).device)
    planner = Planner(options, TrainingLog(options.progress))
    if buckets is not None and planner.verify is not False:
        check_ignored(iteration, buckets)
    together = nullcontext() if processes is None else processes.planning(_equal_on_all(options))
    with deferred_signals(), open_to_signals(first_interrupt=True), together:
        return Executor(iteration, planner, buckets)


def _equal_on_all(options: Options) -> dict[str, tuple[object, str]]:
    """Return options that are equal on all ranks of a DistributedDataParallel, with what all must do."""
    twice = "run an iteration twice, or none"
    equal: dict[str, tuple[object, str]] = {
        "gradient_accumulation_steps": (options.gradient_accumulation_steps, "update at the same batch"),
        "early_updates": (options.early_updates, twice),
    }
    if options.early_updates:
        clipping = options.max_grad_norm
        equal["max_grad_norm"] = (None if clipping is None else clipping.max_norm), twice
    return equal
