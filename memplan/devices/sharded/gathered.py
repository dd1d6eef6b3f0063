"""Weights that an iteration gathers itself: full tensors, made of this rank's share by an operation.

    share ─▶ all-gather ─▶ full weight ─▶ forward and backward ─▶ its gradient ─▶ reduce-scatter ─▶ share's

So a share is a tensor like any other, which a plan may offload, and the full weight is a result, which it may
drop and gather once more. Where rows do not divide, shares are padded by operations too, on every rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...torch_support.torch_collectives import all_gathered, averaged, averaged_part
from .shards import Precision, Shards


class _Form(NamedTuple):
    """Form of a weight that is gathered.

    length: its rows. rows: of each rank's share, padding included. own: of this rank's. size: number of
    ranks. group: name of theirs. replicas: name of the group that has the same share, None for this rank
    alone. precision: dtypes other than the share's.
    """

    length: int
    rows: int
    own: int
    size: int
    group: str
    replicas: str | None
    precision: Precision | None

    @property
    def is_even(self) -> bool:
        return self.rows * self.size == self.length


def gathered(share: Tensor, length: int, shards: Shards, name: str) -> Tensor:
    """Return the weight of this name, of so many rows, differentiable with respect to the share.

    share: this rank's rows. Its gradient is its part of the average over the ranks, then over the replicas.
    """
    *replicas, group = shards.ranks.users_groups
    rows, precision = shards.rows(length), shards.precision.get(name)
    column = replicas[0] if shards.ranks.replicas > 1 else None
    form = _Form(
        length=length,
        rows=rows,
        own=share.shape[0],
        size=shards.ranks.shards,
        group=group,
        replicas=column,
        precision=precision,
    )
    return _Gather.apply(share, form)  # pyright: ignore[reportReturnType, reportUnknownMemberType]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, form: _Form) -> Tensor:
        ctx.form, ctx.dtype = form, share.dtype
        if form.precision is not None:
            share = share.to(form.precision.gathered)
        if form.is_even:
            return all_gathered(share, form.size, form.group)
        return all_gathered(_padded(share, form.rows), form.size, form.group)[: form.length]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        form: _Form = ctx.form
        (gradient,) = gradients
        if form.precision is not None:
            gradient = gradient.to(form.precision.scattered)
        if form.is_even:
            share = averaged_part(gradient.contiguous(), form.size, form.group)
        else:
            share = averaged_part(_padded(gradient, form.rows * form.size), form.size, form.group)
        if form.replicas is not None:  # after the row: FSDP2 rounds in this order
            share = averaged(share, form.replicas)
        return (share if form.is_even else share[: form.own]).to(ctx.dtype), None


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Return a copy with so many rows, zero after its own; of no more rows too, as other ranks make one."""
    return torch.constant_pad_nd(tensor, [0, 0] * (tensor.dim() - 1) + [0, rows - tensor.shape[0]])
