"""Rules of losses that PyTorch has operators for: means that divide by what all pieces have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...program.program import Call, Ref
from .rows import Along
from .rules import (
    SUM,
    WHOLE,
    Part,
    Pattern,
    Rule,
    Site,
    all_broadcast,
    pointwise,
    share_of_mean,
    without_gaps,
)

_NONE, _MEAN = 0, 1
"""Numbers of PyTorch's operators for reductions of the samples' losses. The third is their sum."""


def loss(site: Site, at: int, along: Along) -> Pattern | None:
    """Split a loss of each element, `(input, target, …, reduction)`."""
    reduction = site.named("reduction")
    if reduction == _NONE:
        return pointwise(site, at, along)
    first = site.read(0)
    if first is None or site.makes(at):
        return None
    shape = site.shape(first)
    rows = along.shifted(len(shape) - len(site.shape(at)))
    inputs = all_broadcast(site, shape, rows)
    if inputs is None or inputs[at] is WHOLE or site.shape(site.several(1)[0]) != shape:
        return None
    share = _by_share(site, share_of_mean, rows.rows(shape)) if reduction == _MEAN else None
    return Pattern(inputs, (SUM,), piece=share)


def loss_backward(site: Site, at: int, along: Along) -> Pattern | None:
    """Split the gradient of such a loss, `(gradient, input, target, …, reduction)`."""
    found = pointwise(site, at, along)
    reduction = site.named("reduction")
    if found is None or reduction != _MEAN or not isinstance(found.outputs[0], Along):
        return found
    rows = found.outputs[0].rows(site.shape(site.made[0]))
    return found._replace(piece=_by_share(site, gradient_of_mean, rows))


def _by_share(site: Site, function: Callable[..., Tensor], all_rows: int) -> Callable[[int], Call]:
    return lambda rows: site.called(function, site.call.target, rows / all_rows)


def gradient_of_mean(target: Any, share: float, gradient: Tensor, *others: Any, **keywords: Any) -> Tensor:
    """Return a piece's part of the gradient of the mean over all pieces. share: as in `share_of_mean`."""
    return target(gradient * share, *others, **keywords)


# ── by classes ──────────────────────────────────────────────────────────────────────────────────────────


def _in_target(along: Along) -> Along | None:
    """Return where rows of the scores `[N, C, …]` are in the target `[N, …]`."""
    if along.start >= 2:
        return along.shifted(-1)
    return along if along.stop == 1 else None


def _in_scores(along: Along) -> Along | None:
    if along.start >= 1:
        return along.shifted(1)
    return along if along.stop == 1 else None


def _rows(site: Site, at: int, along: Along, scores: int, target: int) -> tuple[Along, Along] | None:
    """Return where the rows are in the scores and in the target."""
    if len(site.shape(scores)) != len(site.shape(target)) + 1:
        return None  # of one sample
    own = len(site.shape(at)) == len(site.shape(scores))
    there, here = (along, _in_target(along)) if own else (_in_scores(along), along)
    return None if there is None or here is None else (there, here)


def nll_loss(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `nll_loss_forward(input [N, C, …], target [N, …], weight, reduction, ignore_index)`.

    The mean divides by a number that all targets decide. It is counted first, from the targets alone.
    """
    scores, target, reduction = site.read(0), site.read(1), site.argument(3)
    made, total = site.call.outputs
    if scores is None or target is None or at not in (scores, target, made):
        return None
    if (found := _rows(site, at, along, scores, target)) is None:
        return None
    inputs: dict[int, Part] = dict.fromkeys(site.reads, WHOLE) | {scores: found[0], target: found[1]}
    if reduction == _NONE:
        return Pattern(inputs, (found[1], WHOLE))
    if at == made:
        return None
    if reduction != _MEAN:
        return Pattern(inputs, (SUM, SUM))
    if total is None:
        return None
    arguments, dtype = site.call.arguments, site.dtype(scores)
    counted = Call(counted_targets, (*arguments[1:3], arguments[4], dtype), {}, (total,), several=False)
    given = (site.call.target, *arguments[:3], arguments[4], Ref(total))
    term = Call(term_of_nll_loss, given, {}, (made, None), several=True)

    def piece(_rows: int) -> Call:
        return term

    return Pattern(inputs, (SUM, WHOLE), piece=piece, before={1: counted})


def counted_targets(target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype) -> Tensor:
    """Return what the mean of `nll_loss` divides by: the weights of the targets that count."""
    counts = target != ignored
    if weight is None:
        return counts.sum().to(dtype)
    # The number to ignore need not be one of a class.
    return torch.where(counts, weight[torch.where(counts, target, 0)], 0).sum().to(dtype)


def term_of_nll_loss(operator: Any, *given: Any) -> tuple[Tensor, None]:
    """Return a piece's term of the mean. given: scores, target, weight, the number to ignore, the total."""
    *arguments, ignored, total = given
    return operator(*arguments, 2, ignored)[0] / total, None


def nll_loss_backward(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `nll_loss_backward(grad, input, target, weight, reduction, ignore_index, total_weight)`."""
    gradient, scores, target = (site.read(place) for place in range(3))
    if gradient is None or scores is None or target is None:
        return None
    of_rows = (scores, target, *site.made, *((gradient,) if site.argument(4) == _NONE else ()))
    found = _rows(site, at, along, scores, target) if at in of_rows else None
    if found is None:
        return None
    inputs: dict[int, Part] = dict.fromkeys(site.reads, WHOLE) | {scores: found[0], target: found[1]}
    if site.argument(4) == _NONE:
        inputs[gradient] = found[1]
    # The kernel for pictures refuses what is not contiguous, as a piece along one of their dimensions is.
    total = site.read(6)
    unread = frozenset[int]() if total is None or site.argument(4) == _MEAN else frozenset((total,))
    split = Pattern(inputs, (found[0],), forms=unread)
    return without_gaps(site, split) if found[0].start else split


LOSSES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "mse_loss",
            "smooth_l1_loss",
            "huber_loss",
            "soft_margin_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
        ),
        loss,
    ),
    **dict.fromkeys(
        (
            "mse_loss_backward",
            "smooth_l1_loss_backward",
            "huber_loss_backward",
            "soft_margin_loss_backward",
            "binary_cross_entropy_backward",
        ),
        loss_backward,
    ),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
}
