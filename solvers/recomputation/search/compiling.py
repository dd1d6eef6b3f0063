"""The search compiled by another process: `python -m memplan.solvers.recomputation.search.compiling`.

Compiling holds the interpreter for many seconds, and all other threads with it. Another process does it
beside them, and keeps what it has made where this one finds it (graphs/compiled.py). Whoever has an answer
that is good enough before, need not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep

from ....graphs.folders.cache import cache_folder
from ....graphs.folders.scratch import Scratch
from ... import child
from ...problem import Options
from .rounds import COMPILING, at_hand, load

_LOOK_SECONDS = 0.05


def compile_apart(report: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Wait until the search is compiled, or there is `enough` without it. Where nothing can be kept, or the
    process fails, nothing is done: `load` compiles then."""
    if at_hand() or cache_folder() is None:
        return
    report(COMPILING)
    with Scratch("compile") as folder:
        process = child.start(__name__, Path(folder))
        try:
            while process.poll() is None and not enough():
                sleep(_LOOK_SECONDS)
        finally:
            child.kill(process)


if __name__ == "__main__":
    load(Options())
