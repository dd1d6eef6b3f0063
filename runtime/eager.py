"""A planned iteration beside plain PyTorch's, bit by bit, from the same random state."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .execute import Outcome, PlannedStep
from .iteration import Iteration, call, loss_of
from .joint import residents
from .pretence import compiling
from .program import Program
from .unchanged import changing, copies, unchanged

CYCLE = 3
"""How many iterations are compared where weights are updated or moved: what one leaves, others show."""


class Comparison(NamedTuple):
    """first: the first tensor that differs: `loss`, or a name among all that it makes or changes; or None.

    largest: the largest difference of any element in `first`.  compared: how many tensors.
    compiling: eager took the path on which `torch.compiler.is_compiling()` is true, as the trace did.
    """

    first: str | None
    largest: float
    compared: int
    compiling: bool = False

    @property
    def equal(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        where = " on the path for torch.compile" if self.compiling else ""
        if self.first is None:
            return f"{self.compared} tensors bitwise equal to eager{where}"
        return f"{self.first} differs from eager{where} by up to {self.largest:.3g}"


def run_eager(iteration: Iteration) -> Outcome:
    """One iteration by `loss.backward()`, and `optimizer.step()` where the iteration has updates.

    The `.grad` that were there are put back; buffers, and what is updated, change.
    """
    parameters, _buffers, inputs = residents(iteration)
    tensors = [*parameters.values(), *inputs.values()]
    before = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    try:
        output = call(iteration.module, iteration.inputs)
        loss = loss_of(output, iteration.loss_fn, iteration.inputs)
        del output
        loss.backward()
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        if iteration.updates is not None:
            _step(iteration.updates.optimizer)
    finally:
        for tensor, gradient in zip(tensors, before, strict=True):
            tensor.grad = gradient
    return Outcome(loss.detach(), gradients)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """One tensor after the other, as the updates are defined."""
    ways = [group["foreach"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["foreach"] = False
    try:
        optimizer.step()
    finally:
        for group, way in zip(optimizer.param_groups, ways, strict=True):
            group["foreach"] = way


def compare(iteration: Iteration, step: PlannedStep) -> Comparison:
    """Run both, and compare loss, gradients and buffers bitwise. Module and generators stay as they are.

    With updates: weights and states too. With updates or transfers: after `CYCLE` iterations.
    A trace on the path for `torch.compile` that differs from plain eager is compared with eager there.
    """
    device = step.program.device
    turns = 1 if iteration.updates is None and step.cycle is None else CYCLE
    with unchanged(iteration, device):
        outcomes = [step.run(iteration.inputs) for _ in range(turns)]
        step.recall()
        planned = _everything(iteration, step.program, outcomes)
    for flag in (False, True):
        with unchanged(iteration, device), compiling(flag):
            outcomes = [_left(iteration, step.program, run_eager(iteration)) for _ in range(turns)]
            eager = _everything(iteration, step.program, outcomes)
        comparison = _difference(eager, planned)._replace(compiling=flag)
        if comparison.equal or not step.program.compiling:
            break
    return comparison


def _difference(eager: Mapping[str, Tensor], planned: Mapping[str, Tensor]) -> Comparison:
    if unmatched := sorted(eager.keys() ^ planned.keys()):
        return Comparison(unmatched[0], float("inf"), len(eager))
    for name, tensor in eager.items():
        if not _same_bits(tensor, planned[name]):
            return Comparison(name, _largest_difference(tensor, planned[name]), len(eager))
    return Comparison(None, 0.0, len(eager))


def _left(iteration: Iteration, program: Program, eager: Outcome) -> Outcome:
    """Without the gradients that updates use up: eager keeps them for the next `zero_grad`."""
    if iteration.updates is None:
        return eager
    return eager._replace(gradients={name: eager.gradients[name] for name in program.gradients})


def _everything(iteration: Iteration, program: Program, outcomes: list[Outcome]) -> dict[str, Tensor]:
    *before, last = outcomes
    losses = {f"loss {number}": outcome.loss for number, outcome in enumerate(before, start=1)}
    losses["loss"] = last.loss
    there = dict(iteration.module.named_buffers())
    buffers = {name: there[name].clone() for name in program.buffers}
    named = {f"{name}.grad": tensor for name, tensor in last.gradients.items()}
    return losses | named | buffers | copies(changing(iteration))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)


def _largest_difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or one.numel() == 0:
        return float("inf")
    return float((one.double() - other.double()).abs().max())
