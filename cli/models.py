"""Around the user's model: its code runs in our process, and may print, exit or need too much memory."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

from ..graphs.errors import InputError


@contextmanager
def model_code(model: str, device: str) -> Generator[None]:
    """What the model prints goes to standard error: standard output is for the result.

    Raises InputError where the model calls `sys.exit` or finds no memory.
    """
    from ..runtime.verdict import is_out_of_memory

    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit as error:
        raise InputError(f"{model}: the model's code calls sys.exit({error.code!r})") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{model}: there is not memory enough on {device} to run it without a plan"
        ) from error
