"""Isolation of the user's model, whose code runs in memplan's process.

It may print, exit or run out of memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import NoReturn

from ..graphs.errors import InputError, OutOfMemoryError


@contextmanager
def model_code(model: str, device: str) -> Generator[None]:
    """Run the user's code in the block, with its output sent to standard error.

    Standard output is for the command's result. Output that libraries write to file descriptor 1 is
    redirected too. The working folder is restored. Raises OutOfMemoryError if the code runs out of memory,
    InputError if it ends the process, or raises a BaseException that is not an Exception.
    """
    from ..torch_support.out_of_memory import WAYS, is_out_of_memory

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
        line = f"{model}: there is not memory enough on {device} to run it without a plan: {WAYS}"
        raise OutOfMemoryError(line) from error
    # An Exception is reported as it is; others would end the command without a line.
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise InputError(f"{model}: the model's code raises {type(error).__name__}: {error}") from error


@contextmanager
def _output_redirected() -> Generator[None]:
    """Make file descriptor 1 standard error within the block, if both exist."""
    try:
        own = os.dup(1)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


@contextmanager
def _same_folder() -> Generator[None]:
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _exit_raises() -> Generator[None]:
    """Make `os._exit` act as `sys.exit`: else the command would end without a result and report success."""
    before, own = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != own:  # a process that the model's code has forked
            before(status)
        sys.exit(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = before
