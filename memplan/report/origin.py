"""Origin of a page: when it was made, by which versions, on which machine, by which command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from memplan.version import __version__

from ..graphs.units import format_bytes

_PACKAGES = ("highspy", "numba", "numpy", "ortools", "gurobipy")
"""Packages whose versions affect what solvers find."""


def made(arguments: Sequence[str]) -> list[str]:
    """Return two lines: date and versions; and the command. arguments: the words after `plan`."""
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    python = f"memplan {__version__}, Python {sys.version.split()[0]}"
    return [f"{date}, {python}", shlex.join(["plan", *arguments])]


def packages() -> str:
    """Return the installed ones of these packages, with their versions."""
    found: list[str] = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def this_machine() -> str:
    """Describe processor, number of cores, memory and system, as far as the system reports them."""
    memory = ""
    with suppress(ValueError, OSError, AttributeError):
        memory = f"{format_bytes(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}, "
    return f"{_processor()}, {os.cpu_count()} cores, {memory}{platform.system()} {platform.release()}"


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
