"""Clipping of gradients by their norm, as requested for an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from ..graphs.errors import InputError


@dataclass
class Clipping:
    """Clipping of the gradients by their norm.

    max_norm: largest norm of all gradients together; each iteration takes the value that is set at that time.
    """

    max_norm: float


def parse_norm(max_grad_norm: object) -> float:
    """Return a norm as a number. Raise InputError, one line, for anything else.

    Infinity is valid: the norm is reported and nothing is clipped.
    """
    if isinstance(max_grad_norm, int | float) and type(max_grad_norm) is not bool and max_grad_norm > 0:
        return float(max_grad_norm)
    raise InputError(f"max_grad_norm={max_grad_norm!r}: give a number above 0; None does not clip")
