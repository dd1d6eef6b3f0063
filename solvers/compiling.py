"""What is compiled at its first use, by other processes beside us: `python -m MODULE ARGUMENT` for each.

Compiling holds the interpreter for many seconds, and all other threads with it. Other processes do it beside
them, all at once, and keep what they have made where this one finds it (graphs/compiled.py). Whoever has an
answer that is good enough before, need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from ..graphs.folders.cache import cache_folder
from ..graphs.folders.scratch import Scratch
from . import child

COMPILING = "compiling the search: some seconds, once on a machine"

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Code:
    """at_hand: whether nothing is left to compile. module, argument: of the process that compiles it."""

    at_hand: Callable[[], bool]
    module: str
    argument: str = ""


def compile_apart(codes: Iterable[Code], report: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Wait until all is compiled, or there is `enough` without it. Where nothing can be kept, or a process
    fails, nothing is done: who needs it compiles it then."""
    missing = [code for code in codes if not code.at_hand()]
    if not missing or cache_folder() is None:
        return
    report(COMPILING)
    with Scratch("compile") as scratch, ExitStack() as stack:
        processes: list[child.Child] = []
        for number, code in enumerate(missing):
            folder = Path(scratch, str(number))
            folder.mkdir()
            processes.append(child.start(code.module, folder, code.argument))
            stack.callback(child.kill, processes[-1])
        while any(process.poll() is None for process in processes) and not enough():
            sleep(_LOOK_SECONDS)
