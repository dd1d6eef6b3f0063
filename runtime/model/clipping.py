"""Clipping of gradients by their norm, as an iteration is asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from ...graphs.errors import InputError


@dataclass
class Clipping:
    """max_norm: of all gradients together; each iteration takes it as it is then."""

    max_norm: float


def given_norm(clip_norm: object) -> float:
    """Raises InputError, one line. Infinity is taken: the norm is told, nothing is clipped."""
    if isinstance(clip_norm, int | float) and type(clip_norm) is not bool and clip_norm > 0:
        return float(clip_norm)
    raise InputError(f"clip_norm={clip_norm!r}: a norm is a number above 0; None does not clip")
