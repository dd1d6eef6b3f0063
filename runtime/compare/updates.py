"""What a loop of plain PyTorch does behind backward, as planned updates are defined: one tensor after the
other, clipped, scaled, on masters."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..model.iteration import Updates
from ..updates.averaged import Way, averaging
from ..updates.masters import step_on_masters

Firsts = Mapping[Tensor, Tensor]
"""By weight the value that its average begins with, see updates/averaged.py."""


def update(updates: Updates, parameters: Collection[Tensor], firsts: Firsts) -> Tensor | None:
    """The norm of the gradients, where they are clipped."""
    norm = None
    if updates.clipping is not None:
        norm = nn.utils.clip_grad_norm_(parameters, updates.clipping.max_norm)
    way = step_on_masters if updates.masters else None
    _step(updates.optimizer, way if updates.ema is None else averaging(updates.ema, way, firsts))
    return norm


def scaled_update(
    updates: Updates, parameters: Collection[Tensor], firsts: Firsts, scale: Tensor, *, infinite: bool
) -> Tensor | None:
    """By a GradScaler of this scale. infinite: a gradient is not finite, so that it skips the step."""
    scaler = torch.amp.GradScaler(scale.device.type, init_scale=float(scale))
    scaler.scale(scale)  # now it has its scale
    norm = None

    def step(optimizer: Optimizer) -> None:
        nonlocal norm
        if updates.clipping is not None:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(parameters, updates.clipping.max_norm)
        scaler.step(optimizer)

    way: Way = partial(step_on_masters, step=step) if updates.masters else step
    averages = updates.ema is not None and not infinite
    with _no_new_states(updates.optimizer) if infinite else nullcontext():
        _step(updates.optimizer, averaging(updates.ema or 0.0, way, firsts) if averages else way)
    return norm


@contextmanager
def _no_new_states(optimizer: Optimizer) -> Generator[None]:
    """Fused ones make theirs though they update nothing."""
    known = {parameter: set(row) for parameter, row in optimizer.state.items()}
    yield
    for parameter, row in list(optimizer.state.items()):
        for state in row.keys() - known.get(parameter, set()):
            del row[state]
        if not row:
            del optimizer.state[parameter]


def _step(optimizer: Optimizer, way: Way | None) -> None:
    """Step one tensor after the other, as updates are defined, if the optimizer has a choice.

    way: a step in place of the optimizer's own.
    """
    choosing = [(group, group["foreach"]) for group in optimizer.param_groups if "foreach" in group]
    for group, _foreach in choosing:
        group["foreach"] = False
    try:
        optimizer.step() if way is None else way(optimizer)
    finally:
        for group, foreach in choosing:
            group["foreach"] = foreach
