"""memplan.optimize: a module's training iteration within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.machines.presets import find_machine
from ..graphs.transformations.updates import When
from ..runtime.fusion.kernel import check_compiler
from ..runtime.interrupts import deferred_signals, open_to_signals
from ..runtime.model.arguments import (
    check_accumulate,
    check_autocast,
    check_loss_function,
    check_module,
    check_plans,
    check_scaled,
    check_switches,
    check_time_limit,
    check_updates,
    given_budget,
    given_clipping,
    given_folder,
    given_inputs,
    given_outputs,
    given_scaler,
)
from ..runtime.model.iteration import Inputs, Iteration, Updates, tensors_in, with_targets
from ..runtime.model.processes import Processes, inside
from ..runtime.updates.averaged import given_average
from ..runtime.updates.catalogue import is_planned
from ..runtime.updates.masters import given_masters
from ..solvers.registry.catalogue import check_solver
from ..solvers.registry.run import chosen_settings
from .accumulating import AccumulatingStep
from .buckets import check_ignored, given_buckets
from .outside import OutsideStep
from .plan import Planner
from .progress import Progress, given_progress
from .report import Book
from .step import Step
from .weights import check_weights, read_weights


def optimize(
    module: Any,
    inputs: Any,
    *by_position: Any,
    budget: int | str,
    loss_fn: Callable[..., Any] | None = None,
    targets: Any = None,
    optimizer: Any = None,
    update: When = "in-backward",
    clip_norm: float | None = None,
    masters: bool = False,
    ema: float | None = None,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    accumulate: int = 1,
    machine: Machine | str | Path | None = None,
    solver: str = "auto",
    time_limit: float | None = None,
    gap: float | str | None = None,
    plans: int = 8,
    weights: str | Path | None = None,
    keep: bool | str | Path = True,
    compare: bool | None = None,
    undo: bool = False,
    adapt: bool = True,
    compile: bool = False,
    outputs: bool | str | Sequence[str] = False,
    pad: Mapping[str, Any] | None = None,
    buckets: int | Sequence[int] | None = None,
    progress: bool | Progress = False,
) -> Step:
    """Plan training iterations of `module` within `budget`: a callable in place of forward and backward.

    module, inputs: on the device that trains, in the mode (train or eval) that is meant; `inputs` is a
    tensor, a tuple of positional or a dict of keyword arguments. A module in DistributedDataParallel is
    planned by each rank for itself, its gradients averaged, in the plan where that updates weights; all
    ranks call this at once.
    budget: bytes, '12GB', '60%' of the plain peak, or '60%a' of its activations.
    loss_fn: where the output has no `.loss` and is not the loss: `loss_fn(output)`, `loss_fn(output, inputs)`
    or, with targets, `loss_fn(output, targets)`, as torch.nn's losses are called. targets: labels that the
    module does not take, a tensor or a nest of them; each step is then given its own: `step(x, targets=y)`.
    optimizer: the step updates the weights too. Adam, AdamW and SGD of torch.optim, and Lion of lion-pytorch
    or timm, are planned: each weight right after its gradient (`in-backward`) or all after backward
    (`after`). Any other steps after the plan, which has what its states leave of the budget. Without one
    `loss.backward()` of the step's loss adds the gradients to `.grad`, as ever.
    clip_norm: with an optimizer: all gradients together are scaled to this norm where theirs is larger, as
    torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm) does. Updates wait for all gradients then.
    masters: in planned updates each weight in bfloat16 or float16 has a float32 master, beside float32
    states, and is the master, rounded. It is `master` among the optimizer's states.
    ema: planned updates leave a moving average of each weight among the optimizer's states, `ema`, of which
    each keeps this share: see Step.ema_state_dict.
    autocast: torch.bfloat16, or torch.float16 with a scaler: forward and loss run under torch.autocast to it;
    a step needs none around it.
    scaler: a torch.amp.GradScaler: backward is of the loss times its scale as it is then; the loss that is
    returned is not scaled. With an optimizer the step unscales the gradients, skips the update where one is
    not finite (`step.updated`), and updates the scaler. Else all that is the loop's.
    accumulate: so many calls of the step make one update: each adds the gradients of its loss divided by it.
    Without an optimizer: what the loop divides the loss by that its scaler scales.
    The sums are states of planned updates; of other optimizers they stay on the device. See `Step.update`.
    machine: whose links and host memory a plan may use for offloading: a Machine, a machine file, or a
    preset's name, like 'rtx3060'. Without one nothing is moved.
    time_limit: seconds for the solver, each time. gap: stop once proven to be so close to the fastest plan,
    0.01 or '1%'; 0: go on to the end. None: the solver's own, 0.5 % of auto.
    plans: how many shapes of batches are planned; the first batch of another shape has a plan made for it,
    within the same bytes.
    weights: for a module on `meta`, a file of safetensors or a folder of them; each tensor goes where the
    plan keeps it. With planned updates they are never all on the device. Nothing is compared then.
    keep: plans on disk, found again by the next process with the same iteration, budget, solver and computer:
    in the user's cache, in this folder, or nowhere (False).
    compare: run three iterations of the plan and of plain PyTorch, which may need more than the budget, and
    compare all that they make, bit by bit; weights, buffers and random numbers are afterwards as before.
    Where memory does not suffice there is a warning instead. None: unless it was done before with this plan,
    code, state and settings (runtime/compare/grounds.py), which is kept with the plan; True: always.
    undo: an iteration that fails after it has updated a weight (out of memory, a full disk) leaves weights
    and states neither as before it nor as after it; they are refused until others are loaded. With True it
    is as if it had not begun: what updates overwrite is first copied to host memory, as many bytes as weights
    and optimizer states have, and iterations do not overlap.
    adapt: iterations that take 10 % longer or shorter than planned have their plan's transfers moved, and
    solved again in the background, by the times that they take (training/adapt.py). The same bits within the
    same bytes. With False it is only told. Not with DistributedDataParallel.
    compile: PyTorch's Inductor makes one kernel of several operations, where that is faster (measured,
    runtime/fusion): training is then plain PyTorch's but for roundings. What is compared: the trace with
    plain PyTorch and the plan with its own kernels without a plan, bit by bit; each kernel's error against
    float64 is at most 4 times that of PyTorch's own. A share of a budget is one of plain PyTorch's peak. Not
    with DistributedDataParallel.
    outputs: tensors that the module returns and that `step.output` then has: True for all, or names like
    'logits' and 'hidden_states.0'. They are kept to the iteration's end, within the budget.
    pad, buckets: batches are padded to the shortest of these lengths that they fit in, so that these have
    plans, the longest first; a longer batch is one of another shape. pad: by input the value, for dimension
    1, or (value, dimension), which model and loss must ignore: {'input_ids': 0, 'attention_mask': 0,
    'labels': -100}. Compared with plain PyTorch before anything is planned, see check_ignored.
    progress: is told what planning and training are at, as a `Told` (training/progress.py); True writes one
    line to standard error, where that is a terminal.
    Raises MemplanError: not traceable, no schedule within the budget (InfeasibleError), not what plain
    PyTorch computes (DifferenceError), …
    """
    check_module(module)
    if by_position:
        raise InputError(
            "optimize takes a module and its inputs, several as a tuple: give labels by name: "
            "optimize(module, inputs, targets=…, loss_fn=…)"
        )
    module, processes = inside(module)
    check_updates(optimizer, update)
    check_autocast(autocast, scaled=scaler is not None)
    scaler = given_scaler(scaler)
    check_plans(plans)
    check_loss_function(loss_fn)
    check_switches(masters=masters, compare=compare, undo=undo, adapt=adapt, compile=compile)
    check_time_limit(time_limit)
    check_solver(solver)
    settings = {} if gap is None else {"gap": str(gap)}
    chosen_settings(solver, settings)
    folder = given_folder(keep)
    if machine is not None and not isinstance(machine, Machine):
        machine = find_machine(machine)
    check_weights(module, weights)
    in_step = optimizer is not None
    check_accumulate(accumulate, updates=in_step, scaled=scaler is not None)
    planned = optimizer is not None and is_planned(optimizer)
    check_scaled(scaler, accumulate, planned=planned)
    outside = None if planned else optimizer
    if masters:
        given_masters(module, optimizer if outside is None else None)
    clipping = given_clipping(clip_norm, updates=optimizer is not None)
    decay = given_average(ema, module, planned=planned, masters=masters)
    updates = (
        Updates(optimizer, update, clipping, masters, decay) if planned and optimizer is not None else None
    )
    given = with_targets(given_inputs(inputs), targets)
    if compile:
        _check_compiled(given, processes)
    iteration = Iteration(
        module,
        given,
        loss_fn,
        updates,
        given_outputs(outputs),
        processes,
        autocast=autocast,
        accumulate=accumulate if in_step else 1,
        scaler=scaler,
    )
    padded = given_buckets(pad, buckets, given)
    if weights is not None:
        read_weights(module, weights, next(iter(tensors_in(given).values())).device)
        compare = False
    if padded is not None and compare is not False:
        check_ignored(iteration, padded)
    book = Book(given_progress(progress))
    planner = Planner(
        given_budget(budget),
        solver,
        time_limit,
        machine,
        folder,
        compare,
        undo,
        book,
        adapt,
        compile,
        settings,
    )
    together = nullcontext() if processes is None else processes.planning(accumulate)
    with deferred_signals(), open_to_signals(first_interrupt=True), together:
        if outside is not None:
            return OutsideStep(iteration, planner, plans, padded, outside, clipping)
        if accumulate > 1 and in_step:
            return AccumulatingStep(iteration, planner, plans, padded, planner)
        return Step(iteration, planner, plans, padded, planner, parts=accumulate)


def _check_compiled(inputs: Inputs, processes: Processes | None) -> None:
    """Raises InputError, one line."""
    if processes is not None:
        raise InputError("compile=True: each rank of a DistributedDataParallel would have kernels of its own")
    for tensor in tensors_in(inputs).values():
        check_compiler(tensor.device)
