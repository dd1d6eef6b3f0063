"""memplan.optimize: a module's training iteration within a budget."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ..runtime.interrupts import deferred_signals, open_to_signals
from ..runtime.model.arguments import parse_inputs, validate_module
from ..runtime.model.iteration import Iteration, Updates, tensors_in, with_targets
from ..runtime.model.processes import inside
from ..runtime.updates.catalogue import is_planned
from .accumulating import AccumulatingStep
from .buckets import check_ignored, parse_buckets
from .option import takes
from .option_rules import validate_options
from .options import Options
from .plan import Planner
from .report import TrainingLog
from .step import Step
from .unplanned_optimizer import OutsideStep
from .weights import read_weights


@takes(Options, example="targets=…, loss_fn=…")
def optimize(module: Any, inputs: Any, options: Options) -> Step:
    """Plan training iterations of a module within a memory budget.

    Traces and measures the module on the inputs, solves for the fastest schedule within the budget, verifies
    it against eager PyTorch, and returns a callable that replaces forward and backward::

        step = memplan.optimize(
            model, (x,), targets=y, loss_fn=cross_entropy, optimizer=optimizer, budget="12GB"
        )
        for x, y in loader:
            loss = step(x, targets=y)

    Args:
        module (torch.nn.Module): the model, already on the training device and in the intended mode (train()
            or eval()). A module in DistributedDataParallel is planned by each rank for itself, with gradients
            averaged; all ranks call this at once.
        inputs (Tensor, tuple or dict): an example batch: one tensor, a tuple of positional arguments or a
            dict of keyword arguments.

    Returns:
        A Step, called with each batch: runs forward and backward, and the update if the optimizer is given.

    Raises:
        InputError: an option that is not valid, or does not go with another.
        TraceError: a module that can't be traced.
        InfeasibleError: no schedule within the budget.
        DifferenceError: the plan does not compute what eager PyTorch computes.
    """
    return optimize_with(module, inputs, options)


def optimize_with(module: Any, inputs: Any, options: Options) -> Step:
    """Do what `optimize` does, with options that have been read."""
    validate_module(module)
    module, processes = inside(module)
    given = with_targets(parse_inputs(inputs), options.targets)
    optimizer, steps = options.optimizer, options.gradient_accumulation_steps
    planned = optimizer is not None and is_planned(optimizer)
    validate_options(options, module, given, processes, planned=planned)
    buckets = parse_buckets(options.pad_values, options.pad_to_lengths, given)
    updates = None
    if planned and optimizer is not None:
        updates = Updates(
            optimizer, options.update, options.max_grad_norm, options.master_weights, options.ema
        )
    iteration = Iteration(
        module,
        given,
        options.loss_fn,
        updates,
        options.return_outputs,
        processes,
        autocast=options.autocast,
        accumulate=steps if optimizer is not None else 1,
        scaler=options.enabled_scaler,
    )
    if options.weights is not None:
        read_weights(module, options.weights, next(iter(tensors_in(given).values())).device)
    planner = Planner(options, TrainingLog(options.progress))
    if buckets is not None and planner.verify is not False:
        check_ignored(iteration, buckets)
    together = nullcontext() if processes is None else processes.planning(steps)
    with deferred_signals(), open_to_signals(first_interrupt=True), together:
        if optimizer is not None and not planned:
            return OutsideStep(iteration, planner, buckets, optimizer)
        if steps > 1 and optimizer is not None:
            return AccumulatingStep(iteration, planner, buckets)
        return Step(iteration, planner, buckets, parts=steps)
