"""Compile, in worker processes, the functions that are otherwise compiled at their first use.

Compiling holds the interpreter for many seconds, and all other threads with it. Workers do it meanwhile, one
on each core, and keep the compiled code where this process finds it (graphs/compiled.py). A caller that has a
good enough answer before need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import sleep

from joblib import cpu_count

from ...graphs.compiled import code_folder
from .messages import MessageKind
from .serve import Call, resolve
from .worker import Worker

COMPILING = "compiling this solver's code: some seconds, once on this machine"

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Code:
    """Functions that are compiled together.

    available: whether nothing is left to compile.
    function: `module:function`, which compiles them when it is called, without arguments.
    seconds: that this takes, roughly.
    """

    available: Callable[[], bool]
    function: str
    seconds: float = 10.0


def precompile(codes: Iterable[Code], report: Callable[[str], None], enough: Callable[[], bool]) -> None:
    """Wait until all is compiled, or there is `enough` without it.

    If nothing can be kept, or a worker fails, nothing is done: the code is then compiled at its first use.
    """
    missing = [code for code in codes if not code.available()]
    if not missing or code_folder().made() is None:
        return
    report(COMPILING)
    with ExitStack() as stack:
        workers = list[Worker]()
        for share in _shares(missing, cpu_count()):
            workers.append(stack.enter_context(Worker("compile")))
            workers[-1].call(f"{__name__}:compile_all", [code.function for code in share])
        while workers and not enough():
            sleep(_LOOK_SECONDS)
            workers = [worker for worker in workers if not _is_done(worker)]


def _is_done(worker: Worker) -> bool:
    message = worker.hear(0.0)
    return message is not None and message.kind != MessageKind.EVENT


def compile_all(call: Call, functions: Sequence[str]) -> None:
    """Call these functions, in a worker."""
    del call  # compiling can't be asked to stop
    for function in functions:
        resolve(function)()


def _shares(codes: Sequence[Code], most: int) -> list[list[Code]]:
    """Divide the functions among at most `most` processes, the longest first to the one that has least.

    Reference: R. L. Graham, SIAM J. Appl. Math. 17, 1969.
    """
    shares = [list[Code]() for _ in range(min(most, len(codes)))]
    for code in sorted(codes, key=lambda code: -code.seconds):
        min(shares, key=lambda share: sum(other.seconds for other in share)).append(code)
    return shares
