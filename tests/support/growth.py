"""Many solves in one process, and what is left of them: memory, open files, threads, children."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.graphs.errors import MemplanError
from memplan.solvers.registry import run as registry
from odd_graphs import odd_problem
from solver_cases import random_problem


class Held(NamedTuple):
    """bytes: resident, all that is garbage collected."""

    bytes: int
    files: int
    threads: int
    children: int


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    files = len(os.listdir("/proc/self/fd"))
    return Held(pages * resource.getpagesize(), files, threading.active_count(), len(children))


def solve_many(count: int, solvers: Sequence[str], seconds: float, first: int = 0) -> int:
    """Problem after problem, solver after solver. How many gave a schedule."""
    solved = 0
    for number in range(first, first + count):
        problem = odd_problem(Random(number)) if number % 2 else random_problem(number)
        with suppress(MemplanError):
            registry.solve(solvers[number % len(solvers)], problem, seconds, bound_seconds=seconds)
            solved += 1
    return solved
