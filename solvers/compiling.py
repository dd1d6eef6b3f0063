"""What is compiled at its first use, by other processes beside us: as `python -m MODULE ARGUMENT` would.

Compiling holds the interpreter for many seconds, and all other threads with it. Other processes do it beside
them, one on each core, and keep what they have made where this one finds it (graphs/compiled.py). Whoever
has an answer that is good enough before, need not wait.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import sleep

from joblib import cpu_count

from ..graphs.folders.cache import cache_folder
from ..graphs.folders.scratch import Scratch
from . import child

COMPILING = "compiling the search: some seconds, once on a machine"

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Code:
    """at_hand: whether nothing is left to compile. module, argument: what compiles it when it is run.
    seconds: that this takes, roughly."""

    at_hand: Callable[[], bool]
    module: str
    argument: str = ""
    seconds: float = 10.0


def compile_apart(codes: Iterable[Code], report: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Wait until all is compiled, or there is `enough` without it. Where nothing can be kept, or a process
    fails, nothing is done: who needs it compiles it then."""
    missing = [code for code in codes if not code.at_hand()]
    if not missing or cache_folder() is None:
        return
    report(COMPILING)
    with Scratch("compile") as scratch, ExitStack() as stack:
        processes = list[child.Child]()
        for number, share in enumerate(_shares(missing, cpu_count())):
            folder = Path(scratch, str(number))
            folder.mkdir()
            processes.append(child.start(__name__, folder, *chain(*((c.module, c.argument) for c in share))))
            stack.callback(child.kill, processes[-1])
        while any(process.poll() is None for process in processes) and not enough():
            sleep(_LOOK_SECONDS)


def _shares(codes: Sequence[Code], most: int) -> list[list[Code]]:
    """For so many processes at most, the longest first to whoever has least (R. L. Graham, SIAM J. Appl.
    Math. 17, 1969)."""
    shares = [list[Code]() for _ in range(min(most, len(codes)))]
    for code in sorted(codes, key=lambda code: -code.seconds):
        min(shares, key=lambda share: sum(other.seconds for other in share)).append(code)
    return shares


if __name__ == "__main__":
    for module, argument in zip(*[iter(sys.argv[1:])] * 2, strict=True):
        sys.argv = [module, argument]
        runpy.run_module(module, run_name="__main__")
