"""An iteration of eager PyTorch: the training loop that planned iterations are compared with.

Updates are the optimizer's own, clipped, scaled, on master weights, on the host: as planned ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...model.iteration import Iteration, Updates, differentiated, forward, scale_of
from ...program.handover import example_cotangents, ordered
from ...steps.execute import IterationResult
from ...torch_support.below_autograd import without_autocast
from ...torch_support.torch_fakes import uncompiled
from ...tracing.joint import residents
from ...updates.averaged import Way, averaging, first_values
from ...updates.masters import step_on_masters
from .host_updates import stepped_on_host

Firsts = Mapping[Tensor, Tensor]
"""Per weight the first value of its average, see updates/averaged.py."""

Moved = Callable[[], AbstractContextManager[None]]
"""Makes a context within which the optimizer steps some weights on the host."""


def run_eager(
    iteration: Iteration,
    sums: dict[str, Tensor] | None = None,
    firsts: dict[Tensor, Tensor] | None = None,
    *,
    last: bool = True,
    on_host: Collection[str] = (),
) -> IterationResult:
    """Run one iteration of a training loop of eager PyTorch, or its forward alone if it does not train.

    It is `loss.backward()`; then, if the iteration has updates, `clip_grad_norm_` if it clips, and
    `optimizer.step()`. `.grad` is put back as it was; buffers, and what is updated, change.

    sums: gradients of the earlier batches of its update, to which this one adds its own; emptied by the last.
    firsts: first values of the averages of weights, if the iteration is not the first of its update.
    last: whether the iteration is the last of its update, and updates.
    on_host: names of the weights that are updated on copies in host memory.
    """
    parameters, _buffers, inputs = residents(iteration)
    tensors = [*parameters.values(), *inputs.values()]
    before = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    torch.clear_autocast_cache()  # a block of autocast that is around all iterations has weights of before
    sums = {} if sums is None else sums
    firsts = {} if firsts is None else firsts
    if iteration.updates is not None and iteration.updates.ema is not None:
        firsts.update(
            (x, first) for x, first in first_values(iteration.updates.optimizer).items() if x not in firsts
        )
    wide = iteration.accumulates and iteration.updates is not None and iteration.updates.wide_sums
    # Backward adds to `.grad`, and so to the sums of earlier batches; not to those of another dtype.
    for name, total in () if wide else sums.items():
        parameters[name].grad = total
    try:
        with uncompiled(), torch.set_grad_enabled(iteration.trains):
            loss, output = forward(iteration, iteration.module, iteration.inputs)
            outputs = {name: tensor.detach() for name, tensor in output.tensors.items()}
            if iteration.purpose == "part":
                _backward(output.tensors)
            del output
            if iteration.trains and loss is not None:
                with without_autocast(loss.device):
                    differentiated(iteration, loss, iteration.inputs).backward()
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        of_inputs = {name: x.grad for name, x in inputs.items() if x.grad is not None}
        norm, scale = None, scale_of(iteration.inputs)
        infinite = scale is not None and not all(g.isfinite().all() for g in gradients.values())
        if wide:
            gradients = {name: _added(sums.get(name), each) for name, each in gradients.items()}
        sums.clear()
        if not last:
            sums.update(gradients)
        elif iteration.updates is not None:
            hosted = [tensor for name, tensor in parameters.items() if name in on_host]
            moved = partial(stepped_on_host, iteration.updates.optimizer, hosted)
            if scale is None:
                own = {parameters[name]: each for name, each in gradients.items()} if wide else {}
                norm = _update(iteration.updates, parameters.values(), firsts, moved, own)
            else:
                norm = _scaled_update(
                    iteration.updates, parameters.values(), firsts, moved, scale, infinite=infinite
                )
    finally:
        for tensor, gradient in zip(tensors, before, strict=True):
            tensor.grad = gradient
    loss = loss if loss is None else loss.detach()
    return IterationResult(loss, gradients, outputs, norm, infinite, input_gradients=of_inputs)


def _backward(outputs: Mapping[str, Tensor]) -> None:
    """Run backward of the outputs, with the cotangents of a comparison."""
    names, _others = ordered(outputs)
    ends = [outputs[name] for name in names]
    cotangents = example_cotangents({name: outputs[name].detach() for name in names})
    with without_autocast(ends[0].device):
        torch.autograd.backward(ends, list(cotangents.values()))


def _added(total: Tensor | None, gradient: Tensor) -> Tensor:
    """Return the sum of gradients in float32 with another one."""
    return gradient.float() if total is None else total.add_(gradient)


def _update(
    updates: Updates,
    parameters: Collection[Tensor],
    firsts: Firsts,
    moved: Moved,
    sums: Mapping[Tensor, Tensor],
) -> Tensor | None:
    """Update the weights. Returns the norm of the gradients if they are clipped.

    sums: of gradients in float32, in place of `.grad`, by weight; empty without them.
    """
    norm = None
    if updates.clipping is not None and sums:
        norm = _clipped(sums.values(), updates.clipping.max_norm)
    elif updates.clipping is not None:
        # It scales the gradients in place: those that are compared are the clipped ones.
        norm = nn.utils.clip_grad_norm_(parameters, updates.clipping.max_norm)
    for weight, total in () if updates.masters else sums.items():
        weight.grad = total.to(weight.dtype)
    way: Way | None = partial(step_on_masters, gradients=sums) if updates.masters else None
    with moved():
        _step(updates.optimizer, way if updates.ema is None else averaging(updates.ema, way, firsts))
    return norm


def _clipped(gradients: Iterable[Tensor], most: float) -> Tensor:
    """Clip gradients in place, as `clip_grad_norm_` does those of parameters, and return their norm."""
    holders = [nn.Parameter(torch.empty_like(each)) for each in gradients]
    for holder, each in zip(holders, gradients, strict=True):
        holder.grad = each
    return nn.utils.clip_grad_norm_(holders, most)


def _scaled_update(
    updates: Updates,
    parameters: Collection[Tensor],
    firsts: Firsts,
    moved: Moved,
    scale: Tensor,
    *,
    infinite: bool,
) -> Tensor | None:
    """Update the weights by a GradScaler of this scale, as `_update`.

    infinite: whether a gradient is not finite, so that the scaler skips the step.
    """
    scaler = torch.amp.GradScaler(scale.device.type, init_scale=float(scale))
    scaler.scale(scale)  # now it has its scale
    norm = None

    def step(optimizer: Optimizer) -> None:
        nonlocal norm
        if updates.clipping is not None:
            # The norm is that of unscaled gradients.
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(parameters, updates.clipping.max_norm)
        with moved():
            scaler.step(optimizer)

    way: Way = partial(step_on_masters, step=step) if updates.masters else step
    averages = updates.ema is not None and not infinite
    with _no_new_states(updates.optimizer) if infinite else nullcontext():
        _step(updates.optimizer, averaging(updates.ema or 0.0, way, firsts) if averages else way)
    return norm


@contextmanager
def _no_new_states(optimizer: Optimizer) -> Generator[None]:
    """Remove the states that an optimizer has made in the context: fused ones make theirs though they
    update nothing.
    """
    known = {parameter: set(row) for parameter, row in optimizer.state.items()}
    yield
    for parameter, row in list(optimizer.state.items()):
        for state in row.keys() - known.get(parameter, set()):
            del row[state]
        if not row:
            del optimizer.state[parameter]


def _step(optimizer: Optimizer, way: Way | None) -> None:
    """Step as the optimizer does by itself, by kernels for lists if it would take these.

    way: a step in place of the optimizer's own.
    """
    optimizer.step() if way is None else way(optimizer)
