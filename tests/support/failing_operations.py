"""Errors at a chosen operation of an iteration, of eager PyTorch's or of the plan's."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from memplan.profiling.compare import batch, eager
from memplan.runtime.run.recovery import Recovery
from memplan.updates.state import OptimizerState
from torch.utils._python_dispatch import TorchDispatchMode


class MineError(ValueError):
    pass


ERRORS = (RuntimeError, torch.OutOfMemoryError, MineError, KeyboardInterrupt, "Ctrl-C", "Ctrl-C twice")


class FailingAt(TorchDispatchMode):
    """Fails at the nth operation of eager PyTorch's iterations and the plan's, after `enter_faults`."""

    now: FailingAt | None = None

    def __init__(self, number: int = 0, kind: Any = None) -> None:
        super().__init__()
        self.count = 0
        self.raised: BaseException | None = None
        self._number, self._kind = number, kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self._number:
            self._fail()
        return func(*args, **(kwargs or {}))

    def _fail(self) -> None:
        if isinstance(self._kind, str):
            for _ in range(1 + self._kind.endswith("twice")):
                signal.raise_signal(signal.SIGINT)
            return
        raised = self.raised = self._kind("out of memory, on purpose")
        raise raised


def faulty() -> AbstractContextManager[Any]:
    return nullcontext() if FailingAt.now is None else FailingAt.now


def enter_faults(replace: Callable[[Any, str, Any], None]) -> None:
    """Have the mode entered where operations run: a step refuses to be called within one.

    replace: setattr, or pytest's, which undoes it.
    """

    def within(function: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            with faulty():
                return function(*arguments, **keywords)

        return run

    around = Recovery.around

    @contextmanager
    def around_faulty(self: Recovery, residents: Any) -> Any:
        with around(self, residents), faulty():
            yield

    replace(Recovery, "around", around_faulty)
    replace(batch, "run_eager", within(eager.run_eager))
    replace(OptimizerState, "begin", within(OptimizerState.begin))
