"""Why a model can't be traced, in one line: where in the user's code, and torch's reason in plain words."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from ..graphs.errors import MemplanError
from .torch_internals import DataDependentOutputException, DynamicOutputShapeException

_OURS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_VALUES = "its code depends on the values of tensors"
_LONGEST = 300


class TraceError(MemplanError):
    """A model that can't be traced."""


def is_value_dependent(error: BaseException | None) -> bool:
    """Whether it comes of the model's asking for values of tensors: `.item()`, `if tensor:`, `nonzero()`."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return True
    return error is not None and is_value_dependent(error.__cause__)


def refusal(error: Exception) -> MemplanError:
    """The error to raise in the place of `error`."""
    if isinstance(error, MemplanError):
        return error
    return TraceError(f"the model can't be traced: {_place(error)}{_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException):
        return f"{_VALUES} (an `.item()`, an `if tensor:` …; {error})"
    if isinstance(error, DynamicOutputShapeException):
        return f"{_VALUES}, which decide a shape ({error})"
    text = " ".join(str(error).split("While executing %")[0].split())
    return f"{type(error).__name__}: {text}"[:_LONGEST]


def _place(error: Exception) -> str:
    """`model.py:12: `, the innermost line that is neither torch's nor ours; empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_users(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}: "
    return ""


def is_users(filename: str) -> bool:
    """Whether a file of code is neither torch's nor ours."""
    path = Path(filename)
    return path.is_file() and _OURS not in path.parents and _TORCH not in path.parents
