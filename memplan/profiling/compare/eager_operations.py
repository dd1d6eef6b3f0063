"""Seconds of eager PyTorch's operations, timed within its iterations: what the operations of a trace, each
timed alone, can be compared with.

On a busy machine hardly any iteration runs without a pause, but each of its operations does so in some
iteration. So each counts with its fastest run. What Python does between operations is left out, on both
sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...devices.device.cpu import Cpu
from ...devices.device.device import Device
from ...guards.unchanged import unchanged
from ...model.iteration import Iteration
from ...torch_support.torch_fakes import TorchDispatchMode
from ...torch_support.torch_operators import schema_of
from .eager import run_eager


class EagerOperations:
    """The fastest runs of eager PyTorch's operations so far.

    On a device with streams they can't be timed one by one: the whole iteration counts as one.
    """

    def __init__(self, iteration: Iteration, device: Device) -> None:
        self._iteration, self._device = iteration, device
        self._fastest: list[float] = []

    @property
    def seconds(self) -> float:
        """Return the sum of the fastest runs."""
        return sum(self._fastest)

    def add_iteration(self) -> None:
        """Run one more iteration; all that it changes is put back."""
        with unchanged(self._iteration, self._device.torch):
            found = self._iterate()
        if len(found) != len(self._fastest):  # the first iteration, or one that took another path
            self._fastest = found
        self._fastest = list(map(min, self._fastest, found))

    def _iterate(self) -> list[float]:
        if not isinstance(self._device, Cpu):
            return [self._device.once(lambda: run_eager(self._iteration))[1]]
        with _Stopwatch(self._device) as stopwatch:
            run_eager(self._iteration)
        return stopwatch.laps


class _Stopwatch(TorchDispatchMode):
    """Times each operation that is not a view."""

    def __init__(self, device: Cpu) -> None:
        super().__init__()
        self.laps: list[float] = []
        self._clock = device.clock()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        start = self._clock()
        result = func(*args, **(kwargs or {}))
        seconds = self._clock() - start
        if not _is_view(func):
            self.laps.append(seconds)
        return result


def _is_view(func: Any) -> bool:
    aliases = [each.alias_info for each in schema_of(func).returns]
    # A view aliases an input without a write; an operation in place aliases it with one.
    return any(alias is not None and not alias.is_write for alias in aliases)
