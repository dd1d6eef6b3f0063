"""Losses of planned iterations, which stand in for those of eager PyTorch, `loss.backward()` included.

The iteration has computed its gradients already. The loss keeps them, as eager PyTorch's keeps activations:
until `backward()`, which hands them to autograd, or until the loss is no longer referenced. Autograd then
adds them to `.grad` as usual: it takes them over, without a copy, if there is none yet.

The gradients are those of the weights and inputs of then, as in eager PyTorch: autograd saves what it would
have saved, and raises its own error if one of these has changed in place before `backward()`.

Gradients whose loss has gone without a `backward()` were computed for nobody. Those of a loss that is still
there may yet be asked for, as in `(step(a) + step(b)).backward()`; meanwhile they take memory.
"""

# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import frexp, isfinite
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ...devices.storage.offloaded import bring_back
from ...graphs.errors import MemplanError, MismatchError
from ...model.iteration import Inputs, refuse_gradients_of_inputs
from ...model.processes import Processes
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.torch_autograd import graph_is_kept
from ...torch_support.torch_saved_hooks import hooks_of_saved_tensors
from ...torch_support.unsupported import warn_user


class Losses:
    """The losses of a step, one after the other."""

    def __init__(self, *, updates: bool, moves: bool = False) -> None:
        """Set up a step's losses.

        updates: whether the step updates the weights; its gradients are then added to `.grad` at once.
        moves: whether plans may move weights, so that their addresses say nothing.
        """
        self._updates, self._moves = updates, moves
        self._waiting: dict[ref[_Pending], int] = {}
        self._dropped = self._reported = self._rounded = False
        self._used = torch.zeros((), requires_grad=True, device="cpu")

    @property
    def waiting_bytes(self) -> int:
        """Bytes of gradients whose losses are still there, and have had no `backward()`."""
        return sum(self._waiting.values())

    def begin(self, inputs: Inputs) -> None:
        """Prepare for an iteration with these inputs.

        Raises MismatchError if its gradients could not be obtained.
        """
        refuse_gradients_of_inputs(inputs)
        if not (self._updates or torch.is_grad_enabled()):
            raise MismatchError(
                "a step under torch.no_grad() would compute its gradients for nobody: call step.evaluate"
            )
        if self._dropped and not self._reported:
            self._reported = True
            warn_user(
                "the gradients of a step were not asked for, and its loss is gone: call loss.backward() on "
                "each loss, or step.evaluate for a loss alone"
            )

    def of(
        self,
        step: PlannedStep,
        outcome: IterationResult,
        scale: Tensor | None = None,
        processes: Processes | None = None,
    ) -> Tensor:
        """Return the loss of this outcome as a tensor with a backward.

        scale: factor of the loss in the planned backward.
        processes: ranks that average gradients, if `backward` adds them to `.grad`.
        """
        if self._updates:
            step.accumulate(outcome)
            return _Used.apply([outcome.loss], self._used)
        gradients = list(outcome.gradients.values())
        saved = [each for each in outcome.saved if not each.is_inference()]
        if hooks_of_saved_tensors() is not None:  # which see copies, and autograd does not count then
            saved = []
        pending = _Pending(
            in_half=step.in_half,
            scale=scale,
            processes=processes,
            asked=self._asked,
            multiplied=self._multiplied,
            saved=[] if self._moves else saved,
        )
        self._waiting[ref(pending, self._gone)] = sum(gradient.nbytes for gradient in gradients)
        return _Loss.apply([outcome.loss], pending, gradients, saved, *outcome.parameters)

    def _asked(self, pending: _Pending) -> None:
        self._waiting.pop(ref(pending), None)

    def _multiplied(self, factor: float) -> None:
        """Warn once of a factor with which gradients are not eager PyTorch's to the bit."""
        exact = factor == 0 or not isfinite(factor) or abs(frexp(factor)[0]) == 0.5  # a power of 2
        if not (exact or self._rounded):
            self._rounded = True
            warn_user(
                f"backward() of the loss times {factor:.6g}: its gradients round once more than eager "
                "PyTorch's, as with any factor but a power of 2; multiply in loss_fn for the same bits"
            )

    def _gone(self, pending: ref[_Pending]) -> None:
        """Note that a loss is gone: autograd has freed what it keeps."""
        self._dropped = self._waiting.pop(pending, None) is not None or self._dropped


class _Pending:
    """Gradients of an iteration that wait for `backward`, as long as autograd's graph has its loss.

    scale: scale of the gradients.
    processes: ranks that average them.
    asked: called with this object by `backward`.
    multiplied: called with the factor by which the gradients are multiplied.
    saved: tensors that backward reads, and that nothing moves.
    """

    def __init__(
        self,
        in_half: bool,
        scale: Tensor | None,
        processes: Processes | None,
        asked: Callable[[_Pending], None],
        multiplied: Callable[[float], None],
        saved: Sequence[Tensor],
    ) -> None:
        self.in_half, self.processes, self.asked = in_half, processes, asked
        self._scale, self.multiplied = scale, multiplied
        self._addresses = [each.data_ptr() for each in saved]

    def check(self, saved: Sequence[Tensor]) -> None:
        """Raise MismatchError if a tensor has other memory than in the iteration.

        saved: as it was given, if it was. Autograd counts changes in place alone.
        """
        for tensor, address in zip(saved, self._addresses, strict=False):
            if tensor.data_ptr() != address:
                raise MismatchError(
                    f"a tensor that backward needs, {list(tensor.shape)}, was given other memory after the "
                    "step was called (tensor.data = …): call loss.backward() before, or the step after it"
                )

    def factor(self, wanted: Tensor) -> float:
        """Return the factor that turns the planned gradients into those of the loss times `wanted`.

        Raises MemplanError for a factor above 1 if the plan computes in float16, in which small gradients may
        have become 0.
        """
        scale = self._scale
        factor = float(wanted if scale is None else wanted.double() / scale.to(wanted.device).double())
        if factor > 1 and self.in_half:
            times = float(wanted)
            had = "" if scale is None else f", for a loss times {float(scale):g}"
            way = "give scaler= to optimize" if scale is None else "scale by its scaler alone"
            raise MemplanError(
                f"loss.backward() times {times:g}: the plan has computed in float16{had}, where gradients "
                f"that come out as 0 stay 0 however they are scaled: {way}"
            )
        return factor


class _Loss(torch.autograd.Function):
    """Loss whose backward returns gradients that are computed already."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: list[Tensor],
        pending: _Pending,
        gradients: list[Tensor],
        saved: list[Tensor],
        *parameters: Tensor,
    ) -> Tensor:
        ctx.pending, ctx.parameters = pending, parameters
        ctx.save_for_backward(*gradients, *saved)
        return loss[0].detach()

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the loss times `wanted`.

        After a backward without retain_graph autograd has freed them: a second call raises autograd's own
        error, as one does after a change in place of what is saved.
        """
        if torch.is_grad_enabled():
            raise MemplanError("a planned loss has no second derivative: leave create_graph=True out")
        there: tuple[Tensor, ...] = ctx.saved_tensors
        gradients, saved = there[: len(ctx.parameters)], there[len(ctx.parameters) :]
        ctx.pending.check(saved)
        ctx.pending.asked(ctx.pending)
        factor, processes = ctx.pending.factor(wanted), ctx.pending.processes
        ctx.pending.multiplied(factor)
        # With retain_graph=True the saved gradients are used once more: they must not change in place.
        if graph_is_kept() and (factor != 1 or processes is not None):
            gradients = tuple(gradient * factor for gradient in gradients)
        elif factor != 1:
            for gradient in gradients:
                gradient.mul_(factor)
        bring_back(ctx.parameters)  # autograd looks at their form
        bring_back(each.grad for each in ctx.parameters if each.grad is not None)  # and adds to these
        if processes is None:
            return (None, None, None, None, *gradients)
        return (None, None, None, None, *_averaged(processes, ctx.parameters, gradients))


def _averaged(
    processes: Processes, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    """Average gradients over the ranks and return what autograd then adds to `.grad`.

    A `.grad` that is there is averaged with the gradient in it, as DistributedDataParallel does; for it
    autograd gets None.
    """
    sums = [parameter.grad for parameter in parameters]
    for total, gradient in zip(sums, gradients, strict=True):
        if total is not None:
            total.add_(gradient)
    both = list(zip(sums, gradients, strict=True))
    processes.average_all(gradient if total is None else total for total, gradient in reversed(both))
    return [gradient if total is None else None for total, gradient in both]


class _Used(torch.autograd.Function):
    """Loss of an iteration that has updated the weights already; its backward raises MemplanError."""

    @staticmethod
    def forward(_ctx: Any, loss: list[Tensor], _used: Tensor) -> Tensor:
        return loss[0].detach()

    @staticmethod
    def backward(_ctx: Any, _scale: Tensor) -> Any:
        raise MemplanError(
            "the planned step has updated the weights already: leave loss.backward() and optimizer.step() "
            "out, or plan without optimizer="
        )
