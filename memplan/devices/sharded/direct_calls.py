"""Direct calls of a module whose weights a plan has spread: nothing gathers them there.

PyTorch would refuse them too, at the first operation that a share takes part in, for a reason that says
nothing of the plan.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from ...graphs.errors import MismatchError


def refuse_direct_calls(module: nn.Module) -> None:
    """Let each part of a module that has weights itself raise MismatchError where it is called with shares.

    Traces are not affected: there weights are whole.
    """
    for part in module.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(_refuse_shares)


def _refuse_shares(part: nn.Module, _inputs: Any) -> None:
    """Raise MismatchError if a weight of this part is a share."""
    if any(isinstance(each, DTensor) for each in part.parameters(recurse=False)):
        raise MismatchError(
            f"{type(part).__name__} was called with weights that are spread over the ranks: call the step, "
            "step.evaluate or step.predict, which gather them, or load each full_tensor() of state_dict() "
            "into a module made anew"
        )
