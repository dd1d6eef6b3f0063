"""Refusal of collectives that no plan sees: they change tensors in place, or are between single ranks."""

from __future__ import annotations

import inspect
from typing import Any

from .unsupported import TraceError, is_users

_FUNCTIONAL = {
    "all_reduce": "all_reduce(x, 'sum', group)",
    "all_gather_into_tensor": "all_gather_tensor(x, 0, group)",
    "all_gather_single": "all_gather_tensor(x, 0, group)",
    "all_gather": "all_gather_tensor(x, 0, group)",
    "reduce_scatter_tensor": "reduce_scatter_tensor(x, 'sum', 0, group)",
    "reduce_scatter_single": "reduce_scatter_tensor(x, 'sum', 0, group)",
    "reduce_scatter": "reduce_scatter_tensor(x, 'sum', 0, group)",
    "all_to_all_single": "all_to_all_single(x, None, None, group)",
    "all_to_all": "all_to_all_single(x, None, None, group)",
    "broadcast": "broadcast(x, 0, group)",
}
"""Functional calls that take the place of functions which change tensors in place, by their names."""


IN_PART = (
    "collectives of a module's own code are not planned in a larger graph: plan the network in it that "
    "does not communicate, memplan.optimize_module(DistributedDataParallel(network), x), and leave the rest "
    "outside"
)

IN_DDP = (
    "collectives of the module's own code are not planned in DistributedDataParallel: call it after "
    "the step, on step.output (return_outputs=True); or, if the loss needs its result, plan the network "
    "alone, memplan.optimize_module(DistributedDataParallel(network), x), and compute the loss outside"
)


class CollectiveError(TraceError):
    """A call of torch.distributed communicates where no plan sees it.

    called: that the user's line calls it, where the functional form is not planned either.
    """

    called: str = ""


def collective_error(line: str, operator: Any) -> CollectiveError:
    """Return the error of a call of an operator at the user's line."""
    name = _function_called() or operator.overloadpacket.__name__
    error = CollectiveError(f"{line}{_refusal(name)}")
    error.called = f"{line}calls {name}"
    return error


def _refusal(name: str) -> str:
    """Return why a call of a function of torch.distributed can't be planned, and what can."""
    functional = _FUNCTIONAL.get(name.rpartition(".")[2])
    if functional is None:
        return (
            f"calls {name}, which is between single ranks, or waits for all, where no plan sees it: call it "
            "outside of the module, or exchange tensors by y = all_to_all_single(x, None, None, group) of "
            "torch.distributed._functional_collectives, and plan on all ranks"
        )
    if name.startswith("torch.distributed.nn."):
        return (
            f"calls {name}, whose autograd.Function communicates where no plan sees it: call y = "
            f"{functional} of torch.distributed._functional_collectives in an autograd.Function of your own, "
            "whose backward does so too, and plan on all ranks"
        )
    return (
        f"calls {name}, which changes a tensor in place where no plan sees it: call y = {functional} of "
        "torch.distributed._functional_collectives, in an autograd.Function too, and plan on all ranks"
    )


def _function_called() -> str:
    """Return which function of torch.distributed the user's code has called: `torch.distributed.all_reduce`.

    Of those that call each other that is the outermost.
    """
    frame, found = inspect.currentframe(), ""
    while frame is not None and not is_users(frame.f_code.co_filename):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        public = name in frame.f_globals and not name.startswith("_")  # neither a method nor a wrapper
        if module.startswith("torch.distributed.") and public:
            packages = [part for part in module.split(".") if part[0] != "_" and part != "distributed_c10d"]
            found = ".".join((*packages, name))
        frame = frame.f_back
    return found
