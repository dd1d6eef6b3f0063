"""What is compiled at its first use, by other processes beside us: `python -m MODULE ARGUMENT` for each.

Compiling holds the interpreter for many seconds, and all other threads with it. Other processes do it beside
them, one on each core and the longest first, and keep what they have made where this one finds it
(graphs/compiled.py). Whoever has an answer that is good enough before, need not wait.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
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
    """at_hand: whether nothing is left to compile. module, argument: of the process that compiles it.
    seconds: that this takes, roughly."""

    at_hand: Callable[[], bool]
    module: str
    argument: str = ""
    seconds: float = 10.0


def compile_apart(codes: Iterable[Code], report: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Wait until all is compiled, or there is `enough` without it. Where nothing can be kept, or a process
    fails, nothing is done: who needs it compiles it then."""
    waiting = sorted((code for code in codes if not code.at_hand()), key=lambda code: code.seconds)
    if not waiting or cache_folder() is None:
        return
    report(COMPILING)
    with Scratch("compile") as scratch, ExitStack() as stack:
        running = list[child.Child]()
        while (waiting or running) and not enough():
            while waiting and len(running) < cpu_count():
                folder = Path(scratch, str(len(waiting)))
                folder.mkdir()
                code = waiting.pop()
                running.append(child.start(code.module, folder, code.argument))
                stack.callback(child.kill, running[-1])
            sleep(_LOOK_SECONDS)
            running = [process for process in running if process.poll() is None]
