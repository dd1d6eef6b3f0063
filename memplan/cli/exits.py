"""Exit codes, and the mapping from an error to its code and its one line."""

from __future__ import annotations

import errno
from enum import IntEnum

import click

from ..graphs.errors import (
    DifferenceError,
    MemplanError,
    MismatchError,
    MissingPackageError,
    OutOfMemoryError,
)
from .option_sources import ORIGINS, origin


class Exit(IntEnum):
    """Exit codes of `plan`; docs/cli.md lists them for users."""

    DONE = 0
    FAULT = 1
    USAGE = 2
    NO_SCHEDULE = 3
    MISSING = 4
    CHECK_FAILED = 5
    MISMATCH = 6
    INTERRUPTED = 130
    """By Ctrl-C; by SIGTERM 143, by SIGHUP 129."""


class CheckFailedError(MemplanError):
    """A schedule is refused, its figures are wrong, a planned run differs from eager, or a row got worse."""


class NothingFitsError(MemplanError):
    """No batch of a model fits the GPU."""


class NothingSolvedError(MemplanError):
    """No row of a comparison has a schedule or a proof that there is none."""


class OverPlanError(MemplanError):
    """A planned run took more memory than planned: an internal error."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of a disk, or of the file or pipe that standard output goes to."""

EXTRAS = {"torch": "torch", "gurobipy": "gurobi", "onnx": "onnx"}
"""Optional packages -> the extra that installs them."""


def verdict(error: BaseException, interrupted: bool = False) -> tuple[Exit, str]:
    """Return the exit code for an error that ended a command, and its line.

    interrupted: by a signal, before.
    """
    code, line = _verdict(error, interrupted)
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(ORIGINS)]
    return code, " ".join([line, *(f"({note})" for note in notes)])


def _verdict(error: BaseException, interrupted: bool) -> tuple[Exit, str]:
    if isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__  # click takes EOFError for Ctrl-D at a prompt; memplan has no prompts
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Exit.INTERRUPTED, "interrupted"
    if isinstance(error, click.UsageError):
        return Exit.USAGE, _usage(error)
    if isinstance(error, click.ClickException):
        return Exit.USAGE, error.format_message()
    if isinstance(error, MemplanError):
        return _code(error), str(error)
    if isinstance(error, MemoryError):
        return Exit.USAGE, "there is not memory enough on this machine for an input of that size"
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        extra = f"memplan[{EXTRAS[error.name]}]"
        return Exit.MISSING, f"this needs {error.name}, which is not installed: pip install '{extra}'"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return Exit.USAGE, f"{error.filename or 'output'}: cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return Exit.USAGE, f"{error.filename}: {error.strerror}"
    if interrupted:  # an import or a compiler that a signal interrupts raises many sorts of errors
        return Exit.INTERRUPTED, "interrupted"
    said = f": {error}" if str(error) else ""  # some of Python's own errors have no message
    return Exit.FAULT, (
        f"an internal error: {type(error).__name__}{said} (please report it, with what this command prints "
        "with --debug and what `plan env` prints)"
    )


def _usage(error: click.UsageError) -> str:
    if error.ctx is None:
        return error.format_message()
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        # click names an option's variable whether the value is of it or not
        error.param_hint = origin(error.ctx, error.param) or click.Parameter.get_error_hint(
            error.param, error.ctx
        )
    return f"{error.format_message()} (see '{error.ctx.command_path} --help')"


def _code(error: MemplanError) -> Exit:
    from ..planner.errors import InvalidScheduleError
    from ..solvers.problem import InfeasibleError

    if isinstance(error, InvalidScheduleError):
        return Exit.FAULT  # a schedule made by memplan: for a user's file it is a CheckFailedError
    codes = {
        InfeasibleError: Exit.NO_SCHEDULE,
        NothingFitsError: Exit.NO_SCHEDULE,
        OutOfMemoryError: Exit.NO_SCHEDULE,
        NothingSolvedError: Exit.NO_SCHEDULE,
        MissingPackageError: Exit.MISSING,
        CheckFailedError: Exit.CHECK_FAILED,
        DifferenceError: Exit.CHECK_FAILED,
        OverPlanError: Exit.FAULT,
        MismatchError: Exit.MISMATCH,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), Exit.USAGE)
