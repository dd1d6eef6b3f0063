"""The errors that a user can cause, each carried to the command line as one line."""

from __future__ import annotations

from typing import Any

LONGEST_LINE = 1000
"""Most characters of a line; the middle of a longer one is left out."""

NOT_PUT_BACK = "some of what the iteration has changed could not be put back"
"""Beginning of a note of what iterations have raised."""


class MemplanError(Exception):
    """Base of every error that is the input's fault, not memplan's.

    `str()` is one printable line, whatever stands in the names that it mentions.
    """

    def __str__(self) -> str:
        line = super().__str__()
        if len(line) > LONGEST_LINE:
            line = f"{line[: LONGEST_LINE * 3 // 4]} … {line[-LONGEST_LINE // 5 :]}"
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle, whatever arguments the class takes: errors travel between processes."""
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[MemplanError], args: tuple[Any, ...], state: dict[str, Any]) -> MemplanError:
    # __init__ is not called: a class may want other arguments than `args`.
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


class InputError(MemplanError):
    """A file, a unit or an option that cannot be accepted: says where and why."""


class MismatchError(MemplanError):
    """An error: graph, model, schedule and machine do not belong together."""


class DifferenceError(MemplanError):
    """A difference between what the traced program computes and what the model computes.

    Attributes:
        loss (Tensor or None): the loss of eager PyTorch's iteration on the batch of a call of a step, which
            was trained instead of the plan's. None before the first call.
    """

    loss: Any = None


class OutOfMemoryError(MemplanError):
    """Out of memory while planning: one operation of the iteration, run by itself, finds none."""


class MissingPackageError(MemplanError):
    """An error: a needed package or external solver is not installed."""
