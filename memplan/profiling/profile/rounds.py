"""The operations of a program measured in rounds: each round times every distinct call that is not settled.

So the runs of one call are far apart, and what else the machine does for a moment meets them all rarely
(devices/measuring/timing.py). Each round walks through the program and makes the inputs of one call at a
time: no two calls' inputs are there at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import torch

from ...devices.calls.randomness import generators_kept
from ...devices.device.choice import device_of
from ...devices.device.device import Device
from ...devices.device.threads import as_updates_run, update_threads
from ...devices.measuring.live_bytes import live_peak
from ...devices.measuring.measure import Measurement, first_run, measurement
from ...devices.measuring.synthetic_inputs import SyntheticInputs, signature
from ...devices.measuring.timing import Call, Timing
from ...program.program import Operation, Program
from ...torch_support.below_autograd import as_traced
from ...torch_support.out_of_memory import planning
from ...updates.sums import adds_up
from ...updates.updates import updates_weights

_log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Takes the number done, the total (0: unknown), and a name."""
"""Callback with the number of operations done, their total number, and the name of the last."""

LIMIT_SECONDS = 30.0
"""Rounds after the first go on for so long at most, if the caller does not say otherwise."""

ENOUGH = 0.02
"""Share of the time that may be wrong without another round."""

SAID = 0.1
"""Share of the time that may be wrong before a line warns of it."""

FACTOR = 3.0
"""Ratio of two times from which on it is said as a factor, not in percent."""


class _TimedCall:
    """A call that notes what its last run took. seconds: that time, 0 before a run."""

    def __init__(self, call: Call, device: Device) -> None:
        self._call, self._device, self.seconds = call, device, 0.0

    def __call__(self) -> object:
        result, self.seconds = self._device.once(self._call)
        return result


@dataclass
class _OnHost:
    """The measurement of one distinct call in host memory."""

    timing: Timing
    peak_bytes: int = 0


@dataclass
class _Distinct:
    """The measurement of one distinct call.

    on_host: also in host memory, for what may run there; None for other calls.
    """

    timing: Timing
    peak_bytes: int = 0
    result_bytes: tuple[int, ...] = ()
    on_host: _OnHost | None = None

    @property
    def settled(self) -> bool:
        return self.timing.settled and (self.on_host is None or self.on_host.timing.settled)

    def measurement(self) -> Measurement:
        found = measurement(self.timing, self.peak_bytes, self.result_bytes)
        if self.on_host is None:
            return found
        return found._replace(host_seconds=self.on_host.timing.seconds, host_bytes=self.on_host.peak_bytes)


class Rounds:
    """Rounds over the distinct calls of a program."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[int, torch.Tensor],
        chosen: Collection[int] | None = None,
        *,
        keeps_integers: bool = True,
        ran: bool = False,
    ) -> None:
        """Begin without a round.

        tensors: those of inputs, buffers and constants, by value. They and the random generator stay as they
            are.
        chosen: the operations to measure, all by default.
        keeps_integers: False if operations can't run from `tensors` alone: then integers are synthetic too.
        ran: all operations have been run before in this process, as `trace_real_layouts` does.
        """
        self._program, self._tensors, self._keeps_integers = program, tensors, keeps_integers
        self._ran = ran
        self._device = device_of(program.device)
        self._keys = [
            signature(program, operation.call) if chosen is None or place in chosen else None
            for place, operation in enumerate(program.operations)
        ]
        self._distinct: dict[Hashable, _Distinct] = {}

    @property
    def settled(self) -> bool:
        """Return whether the calls whose rounds do not agree matter for no more than `ENOUGH` of the time."""
        return uncertainty(self.measurements()) <= ENOUGH

    @property
    def seconds(self) -> float:
        """Return the sum of the operations' times."""
        return sum(self._distinct[key].timing.seconds for key in self._keys if key is not None)

    def measurements(self) -> list[Measurement]:
        """Return the measurements of the chosen operations in order; equal calls share one."""
        found = {key: one.measurement() for key, one in self._distinct.items()}
        return [found[key] for key in self._keys if key is not None]

    def run_until_settled(self, progress: Progress | None = None, limit_seconds: float | None = None) -> None:
        """Run rounds until all calls are settled, or until `limit_seconds` after the first."""
        self._device.warm_up()
        self.run(progress)
        end = perf_counter() + (LIMIT_SECONDS if limit_seconds is None else limit_seconds)
        rounds = 1
        if progress is not None and not self.settled:
            progress(0, 0, "timing anew what varied")
        while not self.settled and perf_counter() < end:
            self.run(end=end)
            rounds += 1
        settled = "settled" if self.settled else "not settled"
        _log.info("%d distinct calls measured in %d rounds, %s", len(self._distinct), rounds, settled)

    def run(self, progress: Progress | None = None, end: float = inf, *, anew: bool = False) -> None:
        """Run one round over the calls that are not settled.

        end: time of `perf_counter` after which no further call is timed.
        anew: whether settled calls are timed too.
        """
        inputs = SyntheticInputs(self._program, self._tensors)
        waiting = {key for key in self._keys if key is not None and (anew or not self._is_settled(key))}
        total = len(self._program.operations)
        with generators_kept(self._program.random_sources), as_traced(self._program.device):
            for place, operation in enumerate(self._program.operations):
                key = self._keys[place]
                # With a callback the walk goes on: it reports every operation.
                if not waiting and progress is None:
                    return
                with planning(operation.name):
                    if key in waiting and perf_counter() < end:
                        self._time(operation, key, inputs)
                    waiting.discard(key)
                    inputs.advance(run=self._keeps_integers)
                if progress is not None:
                    progress(place + 1, total, operation.name)

    def _is_settled(self, key: Hashable) -> bool:
        return key in self._distinct and self._distinct[key].settled

    def _time(self, operation: Operation, key: Hashable, inputs: SyntheticInputs) -> None:
        """Time the operation at which the inputs are, in its first round its memory too.

        The run that counts a long call's memory is its first round: nothing else fills the caches before it.

        An update of weights, which may run in host memory too, is also timed there, and so is what adds a
        gradient to its sum. A call whose memory depends on the data is counted with what it takes at worst.
        """
        calls, one = inputs.calls(), self._distinct.get(key)
        is_first, timed = one is None, False
        if one is None:
            one = self._distinct[key] = _Distinct(Timing(self._device))
            device = str(self._program.device)
            run = _TimedCall(calls[-1], self._device)
            one.peak_bytes, one.result_bytes = first_run(run, device, ran=self._ran)
            timed = one.timing.add_long_run(run.seconds)
            del run  # it holds the inputs
        if not timed:
            one.timing.add_round(calls)
        del calls  # before other inputs of the call are made
        if is_first:
            worst = (live_peak(call, self._program.device).peak_bytes for call in inputs.calls_by_data())
            one.peak_bytes = max((one.peak_bytes, *worst))
            if updates_weights(operation) or adds_up(operation):
                one.on_host = self._host_measurement(one)
        on_host = one.on_host
        if on_host is not None and on_host.timing is not one.timing:
            as_updates_run(lambda: self._time_on_host(inputs, on_host))

    def _host_measurement(self, one: _Distinct) -> _OnHost:
        """Return an empty measurement in host memory, or the call's own if that is there already."""
        if self._program.device.type == "cpu" and update_threads() == torch.get_num_threads():
            return _OnHost(one.timing, one.peak_bytes)
        return _OnHost(Timing(device_of("cpu")))

    def _time_on_host(self, inputs: SyntheticInputs, one: _OnHost) -> None:
        with as_traced(torch.device("cpu")):
            calls = inputs.calls_on_host()
            if not one.peak_bytes:
                one.peak_bytes = first_run(calls[-1])[0]
            one.timing.add_round(calls)


def uncertainty(measured: Sequence[Measurement]) -> float:
    """Return the share of the operations' time by which it may be off, after the rounds they had."""
    total = sum(one.seconds for one in measured)
    return sum(one.seconds * one.doubt for one in measured) / total if total else 0.0


def busy_line(off: float) -> str | None:
    """Return the line that the user must see if times may be so much off; None for less than `SAID`."""
    return f"this machine is busy: times may be {off_words(off)}" if off >= SAID else None


def off_words(off: float) -> str:
    """Return a share of the smaller time as words: in percent, or as a factor from `FACTOR` on."""
    return f"{off:.0%} off" if off + 1 < FACTOR else f"off by a factor of {off + 1:.0f}"
