"""Moving averages of the weights, made by their updates: a state in addition to the optimizer's own.

    average ← decay · average + (1 - decay) · weight

after each update, from the weight as it is when the first iteration begins. Of a weight with a master
(masters.py) it is the master's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..devices.storage.host_access import at_home_value
from ..graphs.errors import InputError
from .catalogue import titles
from .masters import MASTER
from .planned_optimizer import Rule
from .rules import on_average

AVERAGE = "ema"


def with_average(rule: Rule, decay: float) -> Rule:
    keywords = {**rule.keywords, "of": rule.target.__name__, "decay": decay}
    return rule._replace(target=on_average, states=(*rule.states, AVERAGE), keywords=keywords)


def validate_average(module: nn.Module, *, planned: bool, masters: bool) -> None:
    """Raise InputError, one line, if a moving average of the weights can't be kept.

    planned: whether updates are.
    masters: whether weights of less than float32 have masters.
    """
    if not planned:
        raise InputError(
            f"ema= goes with planned updates, optimizer= of {titles()}; else average in the loop"
        )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < torch.float32.itemsize and not masters:
            raise InputError(
                f"ema: {name} is {parameter.dtype}, too coarse to average: give master_weights=True"
            )


def averages(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the averages by the names of `state_dict`, as copies in host memory.

    What is not averaged, buffers and frozen weights, is as it is.
    """
    found: dict[str, Any] = module.state_dict(keep_vars=True)
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):  # a module's extra state
            continue
        average = optimizer.state.get(tensor, {}).get(AVERAGE, tensor)
        found[name] = at_home_value(average).to("cpu", tensor.dtype, copy=True)
    return found


Way = Callable[[torch.optim.Optimizer], None]


def averaging(decay: float, way: Way | None, firsts: Mapping[Tensor, Tensor]) -> Way:
    """Return a step that also averages weights, as a plan does.

    way: replaces the optimizer's own step, None for that step. The averages are updated after it.
    firsts: by weight the value that an average begins with.
    """
    return partial(_averaged, decay, way, firsts)


def first_values(optimizer: torch.optim.Optimizer) -> dict[Tensor, Tensor]:
    """Copy the weights that have no average yet, before an iteration: forward may change a weight."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    rows = optimizer.state
    return {x: x.detach().clone() for x in weights if x not in rows or AVERAGE not in rows[x]}


def _averaged(
    decay: float, way: Way | None, firsts: Mapping[Tensor, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    weights = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    averages = [_average(optimizer, weight, firsts, wide=way is not None) for weight in weights]
    optimizer.step() if way is None else way(optimizer)
    for weight, average in zip(weights, averages, strict=True):
        row = optimizer.state[weight]
        # lerp, as in the plan: products and their sum round otherwise.
        row[AVERAGE] = average.lerp_(row.get(MASTER, weight.detach()), 1 - decay)


def _average(
    optimizer: torch.optim.Optimizer, weight: Tensor, firsts: Mapping[Tensor, Tensor], *, wide: bool
) -> Tensor:
    """Take the weight's average out of its row: AdamW takes a row that is there for one with all its
    states.
    """
    row = optimizer.state[weight]
    average: Tensor | None = row.pop(AVERAGE, None)
    if average is None:
        first: Tensor = row.get(MASTER, firsts.get(weight, weight.detach()))
        coarse = wide and first.dtype.itemsize < torch.float32.itemsize
        average = first.to(torch.float32 if coarse else first.dtype, copy=True)
    if not row:
        del optimizer.state[weight]
    return average
