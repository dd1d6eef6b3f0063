"""Record of what a trace asks of a GPU's compute capability, and of the GPUs that would answer the same.

A trace sees the capability by these answers alone: those with the same ones run the same operations, and need
no trace of their own.

    a float32 BERT     asks which attention runs: the efficient one everywhere     one trace for all
    a bfloat16 Llama   math on 7.5, flash on 8.0 and 8.6, cuDNN's on 9.0           three
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from ...graphs.machines.gpus import gpus
from .capability import Capability

T = TypeVar("T")


@cache
def all_kinds() -> frozenset[Capability]:
    """Return the capabilities that stand for all GPUs of the table (`Capability.like`)."""
    return frozenset(Capability(*gpu.capability).like for gpu in gpus())


class Questions:
    """Answers to a trace for a GPU of one capability.

    kinds: the capabilities in `all_kinds`, and its own, that have given the same answers so far.
    """

    def __init__(self, capability: Capability) -> None:
        self.capability = capability
        self.kinds = all_kinds() | {capability.like}

    def answer(self, question: Callable[[Capability], T]) -> T:
        """Return the answer for this capability; those with another one are left out."""
        own = question(self.capability)
        # What stands for this capability has its answers, by tests/gpu-operations.tsv.
        others = (one for one in self.kinds if one != self.capability.like)
        self.kinds = frozenset(one for one in others if question(one) == own) | {self.capability.like}
        return own
