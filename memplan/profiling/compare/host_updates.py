"""Eager PyTorch's updates of the weights that a plan updates on the host.

A CPU's kernels round otherwise than a GPU's, and otherwise than another CPU's. So eager steps these weights
on copies in host memory too, by the optimizer's own code: then both have the same bits.

    on the device    weight, gradient, states ─▶ copies on the CPU ─▶ optimizer.step ─▶ back

Where they differ nevertheless, an update may differ by rounding; see `rounding`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ...planner.schedule.schedule import DEFAULT_MODE, Verb
from ...steps.execute import PlannedStep
from ...updates.catalogue import described_groups
from ...updates.counts import COUNT
from ...updates.elementwise import is_foreach
from ...updates.updates import updates_weights

ULPS = 4
"""Units in the last place of a result by which two roundings of one update may differ."""

SHARE = 1e-4
"""Share of an update by which two roundings of it may differ: it is a quotient of sums."""


def weights_on_host(step: PlannedStep) -> frozenset[str]:
    """Return the names of the parameters that the step's schedule updates on the host."""
    if step.graph is None:
        return frozenset()
    graph, program = step.graph, step.program
    on_host = {
        operation
        for verb, operation, mode in step.schedule.rows()
        if verb == Verb.COMPUTE and mode != DEFAULT_MODE and graph.on_host(operation, mode)
    }
    updates = [program.operations[index] for index in on_host if updates_weights(program.operations[index])]
    changed = {storage for update in updates for storage in update.mutates}
    return frozenset(x for x, v in program.parameters.items() if program.values[v].storage in changed)


@contextmanager
def stepped_on_host(optimizer: torch.optim.Optimizer, weights: Collection[Tensor]) -> Generator[None]:
    """Let the optimizer step these weights on copies in host memory, with their gradients and states."""
    moved: list[tuple[Tensor, Tensor, Tensor | None]] = []
    foreach = [group.get("foreach") for group in optimizer.param_groups]
    there = {id(weight) for weight in weights if weight.device.type != "cpu"}
    for group in optimizer.param_groups:
        inside = [weight for weight in group["params"] if id(weight) in there]
        if inside and "foreach" in group:
            group["foreach"] = is_foreach(group)  # PyTorch's default asks where all the weights are
        for weight in inside:
            moved.append((weight, weight.data, weight.grad))
            # PyTorch keeps a tensor and its `.grad` on one device: none while the tensor moves.
            weight.grad, gradient = None, weight.grad
            weight.data = weight.data.cpu()
            weight.grad = gradient if gradient is None else gradient.cpu()
            _move_states(optimizer, weight, torch.device("cpu"))
    try:
        yield
    finally:
        for weight, data, gradient in moved:
            updated, weight.grad = weight.data, None
            # The weight keeps the memory that it had, and only its values change.
            weight.data = data.copy_(updated)
            weight.grad = gradient
            _move_states(optimizer, weight, data.device)
        for group, given in zip(optimizer.param_groups, foreach, strict=True):
            if "foreach" in group:
                group["foreach"] = given


def _move_states(optimizer: torch.optim.Optimizer, weight: Tensor, device: torch.device) -> None:
    row = optimizer.state.get(weight, {})
    fused = any(group.get("fused") for group in optimizer.param_groups)
    numbers = {COUNT, *(name for each in described_groups(optimizer) for name in each.described.products)}
    for name, state in row.items():
        # Counts stay on the host, but for fused kernels, which read them where they run.
        if isinstance(state, Tensor) and (state.dim() or name not in numbers or fused):
            row[name] = state.to(device)


def rounding(
    before: Mapping[str, Tensor], eager: Mapping[str, Tensor], planned: Mapping[str, Tensor], name: str
) -> tuple[float, bool]:
    """Return by how much a tensor that an update changes differs at most, and whether rounding explains it.

    before: the tensors before the update.
    """
    one = eager[name]
    other = planned[name].to(one.device)
    if one.shape != other.shape or one.dtype != other.dtype or not one.dtype.is_floating_point:
        return float("inf"), False
    exact, found = one.double(), other.double()
    start = before[name].to(one.device).double() if name in before else torch.zeros_like(exact)
    # Roundings of the old and the new weight, and of the update between them.
    allowed = ULPS * torch.finfo(one.dtype).eps * (exact.abs() + start.abs()) + SHARE * (exact - start).abs()
    difference = (exact - found).abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    return largest, bool((difference <= allowed).all())
