"""Updates of weights in bfloat16 or float16 by float32: on a master of each, a state in addition to the
optimizer's own, all float32, of which the weight is the rounding; or by sums of gradients alone.

`torch.optim` has no masters, and its `load_state_dict` rounds states to the dtype of the weight: hooks keep
the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..graphs.transformations.mixed_precision import MASTER as MASTER
from ..model.accumulated import SUM
from .catalogue import titles
from .planned_optimizer import Rule
from .rules import on_master, on_rounded
from .several import members_of

_LOW = (torch.bfloat16, torch.float16)


def in_float32(rule: Rule, parameter: nn.Parameter, *, master: bool, sums: bool) -> Rule:
    """Return the rule with what is done in float32 for a parameter of less precision.

    master: it has a master, which is updated. Without one gradients are rounded before the update.
    sums: gradients are clipped and summed up in float32.
    """
    if parameter.dtype not in _LOW or not (master or sums):
        return rule
    keywords: dict[str, Any] = {**rule.keywords, "rule": rule.target.__name__}
    summed = torch.float32 if sums else None
    if not master:
        return rule._replace(target=on_rounded, keywords=keywords, summed=summed)
    if sums:
        keywords["in_float32"] = True
    states = (*rule.states, MASTER)
    return rule._replace(
        target=on_master, states=states, keywords=keywords, dtype=torch.float32, summed=summed
    )


def is_own_master(weight: Tensor, state: str) -> bool:
    """Tell whether a state is the weight itself: the master of one whose share is in float32."""
    return state == MASTER and weight.dtype == torch.float32


def has_low_weights(module: nn.Module) -> bool:
    """Tell whether a weight that is trained can have a master: one in bfloat16 or float16."""
    return any(parameter.dtype in _LOW for parameter in module.parameters() if parameter.requires_grad)


def prepare_masters(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Let the optimizer keep float32 bits from now on. Raise InputError, one line, if there are no masters.

    optimizer: None for one whose updates are not planned.
    """
    if optimizer is None:
        raise InputError(
            f"master_weights=True goes with optimizer= of {titles()}: they are states in the plan"
        )
    if not has_low_weights(module):
        raise InputError(
            "master_weights=True: no weight that is trained is bfloat16 or float16, so none has a master"
        )
    for row in optimizer.state.values():
        if any(isinstance(x, Tensor) and x.dtype in _LOW for x in row.values()):
            raise InputError(
                "master_weights=True: the optimizer has states of less than float32, since load_state_dict "
                "rounds them: call it after optimize, which keeps their bits"
            )
    for member in members_of(optimizer):
        _keep_bits(member)


def prepare_wide_sums(optimizer: torch.optim.Optimizer | None) -> None:
    """Let the optimizer keep sums of gradients in float32 from now on. Raises InputError, one line.

    optimizer: None for one whose updates are not planned.
    """
    if optimizer is None:
        raise InputError(
            f"accumulate_dtype= goes with optimizer= of {titles()}: sums are states in the plan. With "
            "another optimizer leave it out, and keep the weights in float32 with autocast=torch.bfloat16: "
            "their gradients are summed in float32"
        )
    for member in members_of(optimizer):
        _keep_bits(member, {SUM})


def _keep_bits(optimizer: torch.optim.Optimizer, states: Collection[str] | None = None) -> None:
    """Make `load_state_dict` leave float32 states of low weights float32 from now on.

    states: their names, None for all.
    """
    given: dict[Any, dict[str, Any]] = {}

    def note(_optimizer: Any, document: dict[str, Any]) -> None:
        # Before torch.optim casts the states: the caller's document still has their bits.
        given.clear()
        given.update(document["state"])

    def put(_optimizer: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            for name, value in given.get(index, {}).items():
                if states is not None and name not in states:
                    continue
                if isinstance(value, Tensor) and value.dtype == torch.float32 and parameter.dtype in _LOW:
                    device = optimizer.state[parameter][name].device
                    # On the device that torch.optim chose, and a copy: the document is the caller's.
                    optimizer.state[parameter][name] = value.to(device, copy=True)
        given.clear()

    optimizer.register_load_state_dict_pre_hook(note)
    optimizer.register_load_state_dict_post_hook(put)


def _own_step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def step_on_masters(
    optimizer: torch.optim.Optimizer,
    step: Callable[[torch.optim.Optimizer], None] = _own_step,
    gradients: Mapping[Tensor, Tensor] = MappingProxyType({}),
) -> None:
    """Run the optimizer's own step on master weights, as a plan does: each low weight is replaced by its
    master.

    gradients: in float32, by weight, in place of `.grad`.
    """
    low: list[tuple[Tensor, Tensor, Tensor]] = []
    for weight in (p for group in optimizer.param_groups for p in group["params"]):
        if weight.grad is not None and weight.dtype in _LOW:
            # torch.optim makes its states only in a row that is empty.
            master = optimizer.state[weight].pop(MASTER, None)
            master = weight.detach().float() if master is None else master
            low.append((weight, weight.data, weight.grad))
            # `.grad` must have the weight's dtype: it is taken off while that changes.
            weight.grad, gradient = None, weight.grad
            weight.data = master
            weight.grad = gradients.get(weight, gradient).float()
    try:
        step(optimizer)
    finally:
        for weight, data, gradient in low:
            master, weight.grad = weight.data, None
            weight.data = data.copy_(master)
            weight.grad = gradient
            optimizer.state[weight][MASTER] = master
