"""Training of neural networks within a memory budget, with the smallest possible slowdown.

    import memplan

    step = memplan.optimize(model, inputs, budget="12GB")     # traces, measures, solves, checks
    loss = step(*inputs)                                      # forward and backward, within the budget
    loss.backward()                                           # hands over the gradients
    optimizer.step()                                          # optimize(…, optimizer=optimizer) takes it in

`size` says which batch fits a GPU that need not be here. To compare schedulers there are `load_graph`,
`solve`, `simulate`, `load_schedule` and `save_schedule`.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .graphs.undisturbed import undisturbed
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .graphs.errors import DifferenceError as DifferenceError
    from .graphs.errors import InputError as InputError
    from .graphs.errors import MemplanError as MemplanError
    from .graphs.errors import MismatchError as MismatchError
    from .graphs.errors import MissingPackageError as MissingPackageError
    from .graphs.errors import OutOfMemoryError as OutOfMemoryError
    from .graphs.files.files import load_graph as load_graph
    from .graphs.files.files import save_graph as save_graph
    from .planner.errors import InvalidScheduleError as InvalidScheduleError
    from .planner.schedule.file import load_schedule as load_schedule
    from .planner.schedule.file import save_schedule as save_schedule
    from .planner.simulator.simulate import simulate as simulate
    from .sizing.size import SizeAnswer as SizeAnswer
    from .sizing.size import size as size
    from .solvers.problem import InfeasibleError as InfeasibleError
    from .solvers.problem import Problem as Problem
    from .solvers.registry.run import solve as solve
    from .torch_support.unsupported import TraceError as TraceError
    from .training.module import PlannedModule as PlannedModule
    from .training.module import optimize_module as optimize_module
    from .training.optimize import optimize as optimize
    from .training.step.step import Step as Step
    from .training.trainer import optimize_trainer as optimize_trainer

_FROM = {
    "DifferenceError": ".graphs.errors",
    "InfeasibleError": ".solvers.problem",
    "InputError": ".graphs.errors",
    "InvalidScheduleError": ".planner.errors",
    "MemplanError": ".graphs.errors",
    "MismatchError": ".graphs.errors",
    "MissingPackageError": ".graphs.errors",
    "OutOfMemoryError": ".graphs.errors",
    "TraceError": ".torch_support.unsupported",
    "load_graph": ".graphs.files.files",
    "save_graph": ".graphs.files.files",
    "load_schedule": ".planner.schedule.file",
    "save_schedule": ".planner.schedule.file",
    "simulate": ".planner.simulator.simulate",
    "Problem": ".solvers.problem",
    "SizeAnswer": ".sizing.size",
    "size": ".sizing.size",
    "solve": ".solvers.registry.run",
    "optimize": ".training.optimize",
    "PlannedModule": ".training.module",
    "Step": ".training.step.step",
    "optimize_module": ".training.module",
    "optimize_trainer": ".training.trainer",
}

__all__ = [
    "DifferenceError",
    "InfeasibleError",
    "InputError",
    "InvalidScheduleError",
    "MemplanError",
    "MismatchError",
    "MissingPackageError",
    "OutOfMemoryError",
    "PlannedModule",
    "Problem",
    "SizeAnswer",
    "Step",
    "TraceError",
    "load_graph",
    "load_schedule",
    "optimize",
    "optimize_module",
    "optimize_trainer",
    "save_graph",
    "save_schedule",
    "simulate",
    "size",
    "solve",
]


logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what is shown


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        close = import_module("difflib").get_close_matches(name, __all__, n=1)
        meant = f". Did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'memplan' has no attribute {name!r}{meant}")
    with undisturbed():  # a script may have replaced builtins by now
        return getattr(import_module(_FROM[name], __name__), name)


def __dir__() -> list[str]:
    """Return the public API, Python's own names, and the subpackages that are imported."""
    own = {name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules}
    return sorted({*own, *__all__})
