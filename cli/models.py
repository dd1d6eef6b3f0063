"""Around the user's model: its code runs in our process, and may print, exit or need too much memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import NoReturn

from ..graphs.errors import InputError


@contextmanager
def model_code(model: str, device: str) -> Generator[None]:
    """What the model prints goes to standard error: standard output is for the result.

    So does what its libraries write to the file behind standard output. The working folder stays ours.
    Raises InputError where the model ends the process, finds no memory, or raises what is no Exception.
    """
    from ..runtime.compare.verdict import is_out_of_memory

    try:
        with redirect_stdout(sys.stderr), _output_redirected(), _same_folder(), _exit_raises():
            yield
    except SystemExit as error:
        raise InputError(f"{model}: the model's code calls sys.exit({error.code!r})") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{model}: there is not memory enough on {device} to run it without a plan"
        ) from error
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise InputError(f"{model}: the model's code raises {type(error).__name__}: {error}") from error


@contextmanager
def _output_redirected() -> Generator[None]:
    """File descriptor 1 is standard error, as far as both are there."""
    try:
        ours = os.dup(1)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


@contextmanager
def _same_folder() -> Generator[None]:
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _exit_raises() -> Generator[None]:
    """`os._exit` as `sys.exit`: the command would end without a result and say that all is well."""
    before, ours = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != ours:  # a process that the model's code has forked
            before(status)
        sys.exit(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = before
