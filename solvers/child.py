"""A Python process of our own, which may crash or hang without taking us with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

Child = subprocess.Popen[bytes]

PATIENCE_SECONDS = 3.0
"""How long a child that is asked to stop may take to clear up."""


def start(module: str, folder: Path, *arguments: str) -> Child:
    """`python -m module arguments…` in `folder`, where its complaints and its temporary files are kept."""
    with (folder / "complaint").open("wb") as complaint:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "TMPDIR": str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaint,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the child with all it started
        )


def stop(child: Child) -> None:
    """Ask the child to end, and what it started in sessions of their own; then end it."""
    if os.name == "posix" and child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_SECONDS)
    kill(child)


def kill(child: Child) -> None:
    """With all that it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # nobody is left, or nobody alive
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def last_words(child: Child, folder: Path) -> str:
    """The last line that a crashed child wrote, or what ended it."""
    lines = (folder / "complaint").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {child.returncode}"
