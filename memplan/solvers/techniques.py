"""The words of `allow`: techniques, each for all tensors or for some alone."""

from __future__ import annotations

from typing import Literal

Technique = Literal[
    "recompute",
    "recompute:activations",
    "recompute:gradients",
    "offload",
    "offload:activations",
    "offload:weights",
    "offload:gradients",
    "offload:states",
    "disk",
    "host-updates",
]
"""A means by which schedules save memory; after a colon the tensors to which it is applied, else to all."""


def technique_of(word: Technique) -> str:
    """Return a technique without its tensors: "offload" of "offload:states"."""
    return word.partition(":")[0]
