"""memplan: train neural networks within a memory budget, at the least cost in time.

    import memplan

    step = memplan.optimize(model, inputs, budget="12GB")     # traces, measures, solves, checks
    loss = step(*inputs)                                      # forward and backward, within the budget
    optimizer.step()                                          # optimize(…, optimizer=optimizer) takes it in

and for those who compare schedulers: `load_graph`, `solve`, `simulate`, `load_schedule`, `save_schedule`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .graphs.errors import DifferenceError as DifferenceError
    from .graphs.errors import InputError as InputError
    from .graphs.errors import MemplanError as MemplanError
    from .graphs.errors import MismatchError as MismatchError
    from .graphs.errors import MissingPackageError as MissingPackageError
    from .graphs.files.files import load_graph as load_graph
    from .graphs.files.files import save_graph as save_graph
    from .graphs.transformations.updates import When
    from .planner.errors import InvalidScheduleError as InvalidScheduleError
    from .planner.schedule.file import load_schedule as load_schedule
    from .planner.schedule.file import save_schedule as save_schedule
    from .planner.simulator.simulate import simulate as simulate
    from .runtime.refusals import TraceError as TraceError
    from .runtime.run.execute import PlannedStep
    from .solvers.problem import InfeasibleError as InfeasibleError
    from .solvers.problem import Problem as Problem
    from .solvers.registry.run import solve as solve

__version__ = "0.1.0"

_FROM = {
    "DifferenceError": ".graphs.errors",
    "InfeasibleError": ".solvers.problem",
    "InputError": ".graphs.errors",
    "InvalidScheduleError": ".planner.errors",
    "MemplanError": ".graphs.errors",
    "MismatchError": ".graphs.errors",
    "MissingPackageError": ".graphs.errors",
    "TraceError": ".runtime.refusals",
    "load_graph": ".graphs.files.files",
    "save_graph": ".graphs.files.files",
    "load_schedule": ".planner.schedule.file",
    "save_schedule": ".planner.schedule.file",
    "simulate": ".planner.simulator.simulate",
    "Problem": ".solvers.problem",
    "solve": ".solvers.registry.run",
}

__all__ = [
    "DifferenceError",
    "InfeasibleError",
    "InputError",
    "InvalidScheduleError",
    "MemplanError",
    "MismatchError",
    "MissingPackageError",
    "Problem",
    "TraceError",
    "load_graph",
    "load_schedule",
    "optimize",
    "save_graph",
    "save_schedule",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    return getattr(import_module(_FROM[name], __name__), name)


def optimize(
    module: Any,
    inputs: Any,
    *,
    budget: int | str,
    loss_fn: Callable[..., Any] | None = None,
    targets: Any = None,
    optimizer: Any = None,
    update: When = "in-backward",
    solver: str = "auto",
    time_limit: float | None = None,
    compare: bool = True,
    undo: bool = False,
) -> PlannedStep:
    """Plan one training iteration of `module` within `budget`: a callable in place of forward and backward.

    module, inputs: on the device that trains, in the mode (train or eval) that is meant; `inputs` is a
    tensor, a tuple of positional or a dict of keyword arguments. budget: bytes, '12GB', or '60%' of the plain
    peak.
    loss_fn: where the output has no `.loss` and is not the loss: `loss_fn(output)`, `loss_fn(output, inputs)`
    or, with targets, `loss_fn(output, targets)`, as torch.nn's losses are called. targets: labels that the
    module does not take, a tensor or a nest of them; each step is then given its own: `step(x, targets=y)`.
    optimizer: torch.optim.AdamW or SGD: then the step updates the weights too, each right behind its gradient
    (`in-backward`) or all behind backward (`after`). Without one it adds gradients to the parameters'
    `.grad`, like `loss.backward()`. It holds for these shapes.
    compare: run three iterations of the plan and of plain PyTorch, which may need more than the budget, and
    compare all that they make, bit by bit; weights, buffers and random numbers are afterwards as before.
    Where memory does not suffice there is a warning instead.
    undo: an iteration that fails after it has updated a weight (out of memory, a full disk) leaves weights
    and states neither as before it nor as after it; they are refused until others are loaded. With True it
    is as if it had not begun: what updates overwrite is first copied to host memory, as many bytes as weights
    and optimizer states have, and iterations do not overlap.
    Raises MemplanError: not traceable, no schedule within the budget (InfeasibleError), not what plain
    PyTorch computes (DifferenceError), …
    """
    from .planner.plain import baseline
    from .runtime.compare.verdict import NOT_COMPARED, compared
    from .runtime.model.arguments import check_module, check_updates, given_budget, given_inputs
    from .runtime.model.iteration import Iteration, Updates, with_targets
    from .runtime.profile.profile import graph_from, measure_program
    from .runtime.run.cycle import Terms
    from .runtime.run.execute import PlannedStep
    from .runtime.trace.settle import residents, settled
    from .solvers.problem import Problem
    from .solvers.registry.run import solve

    check_module(module)
    check_updates(optimizer, update)
    wanted = given_budget(budget)
    updates = None if optimizer is None else Updates(optimizer, update)
    iteration = Iteration(module, with_targets(given_inputs(inputs), targets), loss_fn, updates)
    program = settled(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    limit = wanted.bytes_of(baseline(graph).peak)
    solution = solve(solver, Problem(graph, limit), time_limit)
    step = PlannedStep(iteration, program, solution.schedule, Terms(graph, limit), undo=undo)
    if compare and compared(iteration, step, graph) is None:
        warnings.warn(NOT_COMPARED, stacklevel=2)
    return step
