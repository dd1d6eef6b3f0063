"""The command `plan`, as a script and as `python -m memplan`; Ctrl-C ends it from its first moment on."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType


def main() -> None:
    """Import the command and run it. Until it handles signals itself, Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    import_module("memplan.cli.main").main()


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process as `Exit.INTERRUPTED` says; an import that is cut off could raise anything."""
    del frame
    sys.stderr.write("plan: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + number)


if __name__ == "__main__":
    main()
