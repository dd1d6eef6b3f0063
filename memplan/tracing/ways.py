"""The ways in which a trace is tried, and the errors of those that lead nowhere."""

from __future__ import annotations

from typing import Literal, NamedTuple
from weakref import ReferenceType

from ..model.iteration import Iteration
from ..torch_support.unsupported import TraceError


class TracePath(NamedTuple):
    """Mode of a trace.

    compiling: trace as `torch.compile` would, with is_compiling() true and no value known.
    values: make the values of buffers and of inputs of whole numbers known, for code that asks for them;
        "real": those of inputs of real numbers too, for code that takes a decision by them.
    host_part: run the code once more after each planned iteration, if it keeps or writes what it reads of
        values that do not lead to the loss; "any": also if it does not, like code that only checks them.
    guess: the value with which it is traced then.
    drops: trace code that changes state of the module or loss although nothing repeats that.
    """

    compiling: bool = False
    values: bool | Literal["real"] = False
    host_part: bool | Literal["any"] = False
    guess: float = 1.0
    drops: bool = False


# Values come before `compiling`: what code decides by them, as transformers does by a mask that hides
# nothing, is then as eager PyTorch decides it. Under is_compiling() it would be one path for all batches.
WAYS = (
    TracePath(),
    TracePath(host_part=True),
    TracePath(values=True, host_part=True),
    TracePath(values=True),
    TracePath(values="real", host_part=True),
    TracePath(values="real"),
    TracePath(compiling=True),
    TracePath(host_part="any"),
    TracePath(host_part="any", guess=0.0),
    TracePath(drops=True),
)


class UnkeptError(TraceError):
    """Error of code that changes what only its own run changes: lists and numbers of the loop."""


class UnrepeatedError(TraceError):
    """Error of code that changes state of the module or loss in each iteration."""


def unkept(iteration: Iteration, what: str) -> UnkeptError:
    return UnkeptError(
        f"{_owner(iteration)} changes {what}, which a plan does not repeat in each iteration, and its code "
        "can't run once more after each: leave it out"
    )


def _owner(iteration: Iteration) -> str:
    owner = getattr(iteration.module, "owner", None)
    thing = owner() if isinstance(owner, ReferenceType) else iteration.module
    return f"the loss of {type(thing).__name__}"
