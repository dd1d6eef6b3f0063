"""The eight operations of a decoder block with their weights, FLOP and tensors, joined as requested.

    x ─norm.1─▶ normed.1 ─qkv─▶ qkv ─attention─▶ mixed ─project─▶ y          (y: x added)
    y ─norm.2─▶ normed.2 ─up─▶ up ─activate─▶ active ─down─▶ out             (out: y added)

Sizes are elements for a whole batch. Attention runs without keeping its scores (flash attention) unless
requested. A multiplication of t tokens by a matrix of n elements is 2·t·n FLOP; the scores of a decoder are
half a square; norms and activations count no FLOP, only bytes. Backward takes twice the FLOP of forward (one
product for the input, one for the weight).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .models import Transformer

BACKWARD_FLOPS = 2
"""FLOP of a backward operation per FLOP of its forward operation."""

_ATTENTION = ("norm.1", "qkv", "attention", "project")
_MLP = ("norm.2", "up", "activate", "down")

GROUPS = {
    "layer": (("block", _ATTENTION + _MLP),),
    "sublayer": (("attention", _ATTENTION), ("mlp", _MLP)),
    "operation": tuple((name, (name,)) for name in _ATTENTION + _MLP),
}
"""Granularity -> the operations of a block, each with the operations that it joins."""


@dataclass(frozen=True)
class Part:
    """One forward operation of a block and its backward.

    flops: FLOP of forward.
    weight: elements, 0 for none.
    makes: output tensor -> elements.
    saved: tensors of the forward pass that backward reads.
    gradients: tensors whose gradient backward reads.
    into: tensor whose gradient backward computes.
    inner: elements of the largest gradients that live inside backward alone.
    """

    name: str
    flops: float
    weight: int
    reads: tuple[str, ...]
    makes: dict[str, int]
    saved: tuple[str, ...]
    gradients: tuple[str, ...]
    into: str
    inner: int = 0


def block_parts(model: Transformer, batch: int, sequence: int, *, keep_scores: bool) -> tuple[Part, ...]:
    """Return the operations in order: `x` is the block's input, `out` its output."""
    tokens = batch * sequence
    h, f, up = tokens * model.hidden, tokens * model.ffn, tokens * model.ffn * (2 if model.gated else 1)
    scores = {"scores": batch * model.heads * sequence**2} if keep_scores else {}
    # 2·b·s²·h for the scores and as much for their product with the values; half of both is masked.
    mixing = 2.0 * batch * sequence**2 * model.hidden

    def product(name: str, reads: str, makes: dict[str, int], *added: str) -> Part:
        weight = model.block_weights[name]
        return Part(
            name=name,
            # The few elements of norm and bias count with their matrix.
            flops=2.0 * tokens * weight,
            weight=weight,
            reads=(reads, *added),
            makes=makes,
            saved=(reads,),
            gradients=tuple(makes),
            into=reads,
        )

    def simple(name: str, reads: str, makes: dict[str, int], *also: str) -> Part:
        return Part(
            name=name,
            flops=0.0,
            weight=0,
            reads=(reads,),
            makes=makes,
            saved=(reads,),
            gradients=(*makes, *also),
            into=reads,
        )

    return (
        # x is added to y, so the gradient of x includes that of y.
        simple("norm.1", "x", {"normed.1": h}, "y"),
        product("qkv", "normed.1", {"qkv": 3 * h}),
        Part(
            name="attention",
            flops=mixing,
            weight=0,
            reads=("qkv",),
            makes={"mixed": h, **scores},
            saved=("qkv", "mixed", *scores),
            gradients=("mixed",),
            into="qkv",
        ),
        product("project", "mixed", {"y": h}, "x"),
        simple("norm.2", "y", {"normed.2": h}, "out"),
        product("up", "normed.2", {"up": up}),
        simple("activate", "up", {"active": f}),
        product("down", "active", {"out": h}, "y"),
    )


def joined(name: str, parts: Sequence[Part], sizes: dict[str, int]) -> Part:
    """Join neighbouring operations into one. sizes: elements of every tensor of the block."""
    makes = {tensor: size for part in parts for tensor, size in part.makes.items()}
    within = {part.into for part in parts[1:]}
    live = [
        sizes[later.into] + sum(sizes[g] for g in earlier.gradients if g in within)
        for earlier, later in pairwise(parts)
    ]
    return Part(
        name=name,
        flops=sum(part.flops for part in parts),
        weight=sum(part.weight for part in parts),
        reads=_unique(t for part in parts for t in part.reads if t not in makes),
        makes=makes,
        saved=_unique(t for part in parts for t in part.saved),
        gradients=_unique(g for part in parts for g in part.gradients if g not in within),
        into=parts[0].into,
        inner=max(live, default=0),
    )


def parts_of(
    model: Transformer, batch: int, sequence: int, granularity: str, *, keep_scores: bool
) -> list[Part]:
    """Return a block's operations at a granularity; a whole layer keeps what backward reads as one tensor."""
    parts = {part.name: part for part in block_parts(model, batch, sequence, keep_scores=keep_scores)}
    sizes = {"x": batch * sequence * model.hidden}
    sizes |= {name: size for part in parts.values() for name, size in part.makes.items()}
    rows = [joined(name, [parts[p] for p in names], sizes) for name, names in GROUPS[granularity]]
    if granularity == "layer":
        kept = sum(size for name, size in rows[0].makes.items() if name != "out")
        return [replace(rows[0], makes={"saved": kept, "out": sizes["out"]}, saved=("saved", "x"))]
    return rows


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
