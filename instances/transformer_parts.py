"""What a decoder block is made of: five operations with their weights, FLOP and tensors, joined as wanted.

    x ─qkv─▶ normed.1, qkv ─attention─▶ mixed ─project─▶ y ─up─▶ normed.2, up ─down─▶ active, x'
    └───────────────── residual ──────────────────────▶ y └────── residual ───────────────▶ x'

Sizes are elements for a whole batch. Attention runs without keeping its scores (flash attention) unless
asked to. A multiplication of t tokens by a matrix of n elements is 2·t·n FLOP; the scores of a decoder
are half a square. Backward takes twice the FLOP of forward (one product for the input, one for the weight).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .models import Transformer

BACKWARD_FLOPS = 2
"""FLOP of a backward operation for one of its forward operation."""

GROUPS = {
    "layer": (("block", ("qkv", "attention", "project", "up", "down")),),
    "sublayer": (("attention", ("qkv", "attention", "project")), ("mlp", ("up", "down"))),
    "operation": tuple((name, (name,)) for name in ("qkv", "attention", "project", "up", "down")),
}
"""Granularity -> the operations of a block, each with the parts that it joins."""


@dataclass(frozen=True)
class Part:
    """One forward operation of a block and its backward.

    flops: of forward. weight: elements, 0 for none. makes: tensor -> elements. saved: what backward reads of
    the forward part. gradients: of which tensors backward reads the gradient. into: whose gradient it makes.
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
    """The five operations in order: `x` is the block's input, `out` its output."""
    tokens = batch * sequence
    h, up = tokens * model.hidden, tokens * model.ffn * (2 if model.gated else 1)
    weight = model.block_weights
    flops = {name: 2.0 * tokens * elements for name, elements in weight.items()}
    scores = {"scores": batch * model.heads * sequence**2} if keep_scores else {}
    mixing = 2.0 * batch * sequence**2 * model.hidden
    return (
        Part(
            "qkv",
            flops["qkv"],
            weight["qkv"],
            ("x",),
            {"normed.1": h, "qkv": 3 * h},
            ("normed.1", "x"),
            ("qkv", "y"),
            "x",
        ),
        Part(
            "attention",
            mixing,
            0,
            ("qkv",),
            {"mixed": h, **scores},
            ("qkv", "mixed", *scores),
            ("mixed",),
            "qkv",
        ),
        Part(
            "project",
            flops["project"],
            weight["project"],
            ("mixed", "x"),
            {"y": h},
            ("mixed",),
            ("y",),
            "mixed",
        ),
        Part(
            "up",
            flops["up"],
            weight["up"],
            ("y",),
            {"normed.2": h, "up": up},
            ("normed.2", "y"),
            ("up", "out"),
            "y",
        ),
        Part(
            "down",
            flops["down"],
            weight["down"],
            ("up", "y"),
            {"active": tokens * model.ffn, "out": h},
            ("up", "active"),
            ("out",),
            "up",
        ),
    )


def joined(name: str, parts: Sequence[Part], sizes: dict[str, int]) -> Part:
    """Neighbouring parts as one operation. sizes: elements of every tensor of the block."""
    makes = {tensor: size for part in parts for tensor, size in part.makes.items()}
    within = {part.into for part in parts[1:]}
    live = [
        sizes[later.into] + sum(sizes[g] for g in earlier.gradients if g in within)
        for earlier, later in pairwise(parts)
    ]
    return Part(
        name,
        sum(part.flops for part in parts),
        sum(part.weight for part in parts),
        _unique(t for part in parts for t in part.reads if t not in makes),
        makes,
        _unique(t for part in parts for t in part.saved),
        _unique(g for part in parts for g in part.gradients if g not in within),
        parts[0].into,
        max(live, default=0),
    )


def parts_of(
    model: Transformer, batch: int, sequence: int, granularity: str, *, keep_scores: bool
) -> list[Part]:
    """A block's operations at a granularity; a whole layer keeps what backward reads as one tensor."""
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
