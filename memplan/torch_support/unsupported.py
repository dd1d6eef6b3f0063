"""One-line trace errors: the place in the user's code, and PyTorch's reason in simple words."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..graphs.errors import MemplanError
from .hints import NO_FAKE_KERNEL, hint
from .out_of_memory import is_out_of_memory, without_memory
from .torch_fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    operator_without_fake_kernel,
)

_PACKAGE = Path(__file__).parent.parent
_WITHOUT_TORCH = {"graphs", "instances", "planner", "solvers"}
_OURS = {each for each in _PACKAGE.iterdir() if each.is_dir() and each.name not in _WITHOUT_TORCH}
_TORCH = Path(torch.__file__).parent
_PYTHON = sysconfig.get_path("stdlib")
_VALUES = "its code depends on the values of tensors"
_LONGEST = 300
_SHOWN = ("passed to FakeTensor.__format__", ".numpy() is not supported")
"""Parts of PyTorch's errors for a fake tensor whose values are shown."""
_FRAMES = "memplan_frames"
_LAYER = "memplan_layer"
"""The attribute of an error that holds the layer."""
_ORIGIN = "memplan_origin"
"""The attribute that holds what the values follow from."""
_LIBRARIES = ("site-packages", "dist-packages")


class TraceError(MemplanError):
    """Error of a model that can't be traced."""


def is_value_dependent(error: BaseException | None) -> bool:
    """Tell whether the error comes of the model's use of tensors' values: `.item()`, `if tensor:`,
    `nonzero()`.
    """
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return True
    # An error that is raised from itself is its own cause.
    return error is not None and error.__cause__ is not error and is_value_dependent(error.__cause__)


def asks_for_values(error: Exception) -> bool:
    """Tell whether the error comes of code that reads values, writes them or hands them to NumPy."""
    return is_value_dependent(error) or any(text in str(error) for text in _SHOWN)


def refusal(error: Exception) -> MemplanError:
    """Return the error to raise instead of `error`: with its place, the reason and advice."""
    if isinstance(error, MemplanError):
        return error
    frames = getattr(error, _FRAMES, None) or traceback.extract_tb(error.__traceback__)
    users = _place(frames)
    place = users or getattr(error, _LAYER, "")
    if is_out_of_memory(error):
        return without_memory(place.rstrip(": ") or "the model's code", error)
    text = f"{type(error).__name__}: {error}"
    if operator_without_fake_kernel(error) is not None:
        text = NO_FAKE_KERNEL
    origin = getattr(error, _ORIGIN, "")
    advice, reason = hint(frames, text, outside=not users, origin=origin)
    follows = f" that follow from {origin}" if origin else ""
    reason = reason or _reason(error).replace(_VALUES, f"{_VALUES}{follows}", 1)
    return TraceError(f"the model can't be traced: {place}{reason}{advice}")


def note_layer(error: Exception, layer: str) -> None:
    """Keep the layer in which the error was raised: its place, if no line of the user's is on the way."""
    setattr(error, _LAYER, f"in {layer}: ")


def note_origin(error: Exception, origin: str) -> None:
    """Keep what the values follow from that, as an error says, the code asks for."""
    setattr(error, _ORIGIN, origin)


def note_frames(error: Exception) -> None:
    """Keep where an error was raised that is caught here, and may be raised once more elsewhere."""
    setattr(error, _FRAMES, [*traceback.extract_stack(), *traceback.extract_tb(error.__traceback__)])


def _reason(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException):
        return f"{_VALUES} (an `.item()`, an `if tensor:` …; {error})"
    if isinstance(error, DynamicOutputShapeException):
        return f"{_VALUES}, which decide a shape ({error})"
    if (operator := operator_without_fake_kernel(error)) is not None:
        return f"the operator {operator} {NO_FAKE_KERNEL}"
    if "HigherOrderOperator" in str(error):
        return "it calls an operator that takes functions (torch.cond, a scan, …)"
    text = " ".join(str(error).split("While executing %")[0].split()).replace("'FakeTensor'", "'Tensor'")
    return f"{type(error).__name__}: {text}"[:_LONGEST]


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return `model.py:12: `, the innermost line that is neither torch's nor this package's.

    Returns an empty string if there is none.
    """
    return next(
        (at_line(each.filename, each.lineno) for each in reversed(frames) if is_users(each.filename)), ""
    )


def at_line(filename: str, line: int | None) -> str:
    """Return `model.py:12: `; in a library, `moe.py:379 of transformers: `."""
    path = Path(filename)
    package = next((after for before, after in pairwise(path.parts) if before in _LIBRARIES), None)
    of = "" if package is None else f" of {package.removesuffix('.py')}"
    return f"{path.name}:{line}{of}: "


def users_line() -> str:
    """Return `model.py:12: `, the innermost line of the user's code that is being run."""
    frame = inspect.currentframe()
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return at_line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def library_of(place: str) -> str | None:
    """Return the name of the library whose line `at_line` has written."""
    _line, of, package = place.removesuffix(": ").partition(" of ")
    return package if of else None


def first_line(run: Callable[[], object], seen: Callable[[], bool]) -> str:
    """Return `model.py:12: `, the first line of the user's code in a run after which `seen` holds.

    Returns an empty string if there is none.

    Slow: `seen` is asked after each line.
    """
    lasts: dict[FrameType, int] = {}
    places: list[str] = []

    def at(frame: FrameType, _event: str, _argument: object) -> Any:
        # A line's event precedes it: what is seen now the frame's line before has done.
        if not places and frame in lasts and seen():
            places.append(at_line(frame.f_code.co_filename, lasts[frame]))
        lasts[frame] = frame.f_lineno
        return at

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        return at if not places and is_users(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        with suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    return next(iter(places), "")


def warn_user(text: str) -> None:
    """Warn at the line outside of this package, and of PyTorch, that has called."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and not {*_OURS, _TORCH}.isdisjoint(Path(frame.f_code.co_filename).parents):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


@cache
def is_users(filename: str) -> bool:
    """Tell whether a file of code is neither torch's nor this package's.

    typing_extensions has the wrappers of torch's deprecated functions.
    """
    path = Path(filename)
    if path.name == "typing_extensions.py":
        return False
    if not _OURS.isdisjoint(path.parents) or _TORCH in path.parents or not path.is_file():
        return False
    # site-packages is inside Python's folder: a library's lines count as the user's.
    return not filename.startswith(_PYTHON) or any(folder in path.parts for folder in _LIBRARIES)
