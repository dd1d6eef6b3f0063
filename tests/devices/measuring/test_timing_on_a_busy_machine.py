"""Times on a machine with other work, by a timer that adds time slices at random: no clock is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any
from zlib import crc32

import pytest
import torch
from click.testing import CliRunner
from iterations import mean_square
from memplan.cli.main import main
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.device import Timed
from memplan.devices.measuring.measure import Measurement
from memplan.devices.measuring.timing import AGREE, FEWEST, MOST, Timing
from memplan.model.iteration import Iteration
from memplan.profiling.compare.eager_operations import EagerOperations
from memplan.profiling.profile import against_eager, rounds
from memplan.profiling.profile.against_eager import Check, check_against_eager, doubt_line
from memplan.profiling.profile.profile import measure_program, profile
from memplan.profiling.profile.rounds import Rounds, busy_line, uncertainty
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from torch import nn

MS = 1e-3
SLICE_SHARE, SLICES = 0.3, (4 * MS, 280 * MS)

MODEL = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), (torch.ones(4, 8),), torch.sum
"""


def true_seconds(call: Any) -> float:
    """0.2 to 5 ms, by the operator and its arguments' shapes."""
    shapes = [tuple(each.shape) for each in call.args if isinstance(each, torch.Tensor)]
    return (0.2 + crc32(f"{call.func} {shapes}".encode()) % 48 / 10) * MS


class BusyTimer:
    """A timer of calls that never runs them."""

    def __init__(self, seed: int, share: float = SLICE_SHARE) -> None:
        self._random, self._share, self.timings = Random(seed), share, 0

    def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
        self.timings += 1
        taken = sum(map(true_seconds, calls))
        if self._random.random() < self._share:
            taken += self._random.uniform(*SLICES)
        return Timed(taken / len(calls))


def use(monkeypatch: pytest.MonkeyPatch, timer: BusyTimer) -> None:
    monkeypatch.setattr(Cpu, "timed", lambda _self, calls: timer.timed(calls))
    monkeypatch.setattr(rounds, "LIMIT_SECONDS", float("inf"))


def convnet() -> Iteration:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width in range(2, 14):
        layers += [nn.Conv2d(width, width + 1, 3, padding=1), nn.BatchNorm2d(width + 1), nn.ReLU()]
    return Iteration(nn.Sequential(*layers), (torch.randn(2, 2, 6, 6),), mean_square)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(5))
def test_time_slices_of_others_are_not_in_the_times(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Some 100 distinct calls. A median of three is off by 4 ms or more for a fifth of them."""
    iteration = convnet()
    program = trace(iteration)
    known = residents(program, iteration)
    use(monkeypatch, BusyTimer(seed, 0.0))
    quiet = [one.seconds for one in measure_program(program, known)]
    use(monkeypatch, BusyTimer(seed))
    found = measure_program(program, known)
    assert len({id(one) for one in found}) > 80
    assert uncertainty(found) <= rounds.ENOUGH
    assert sum(one.seconds for one in found) == pytest.approx(sum(quiet), rel=0.02)
    off = [abs(one.seconds / seconds - 1) for one, seconds in zip(found, quiet, strict=True)]
    assert sum(each > 0.2 for each in off) <= 1


def test_a_quiet_machine_needs_the_fewest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    iteration = convnet()
    program = trace(iteration)
    timer = BusyTimer(0, 0.0)
    use(monkeypatch, timer)
    found = measure_program(program, residents(program, iteration))
    distinct = len({id(one) for one in found})
    assert 2 * FEWEST * distinct <= timer.timings <= 2 * MOST * distinct
    assert uncertainty(found) == 0.0


class Scripted(Cpu):
    """A device whose runs take what a list says."""

    def __init__(self, *seconds: float) -> None:
        super().__init__(torch.device("cpu"))
        self._seconds = iter(seconds)

    def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
        return Timed(next(self._seconds))


def timing(*runs: float) -> Timing:
    """Return the timing of rounds in which all runs take the same, of a slow call: each has its fewest.

    runs: in tenths of a second.
    """
    found = Timing(Scripted(*(seconds / 10 for each in runs for seconds in [each] * FEWEST)))
    for _ in runs:
        found.add_round([lambda: None])
    return found


def test_a_time_is_believed_once_rounds_agree() -> None:
    """Two must be closer than three: two that fell into slices as a whole may agree by chance."""
    assert timing(0.9).doubt == 1.0
    assert timing(0.9, 0.91).settled
    assert not timing(0.9, 0.95).settled
    assert timing(0.9, 0.95, 0.96).settled
    slow = timing(0.9, 0.9, 0.1)
    assert (slow.seconds, slow.doubt) == (pytest.approx(0.01), pytest.approx(8.0))
    assert not timing(0.9, 0.9, 0.1, 0.105).settled
    assert timing(0.9, 0.9, 0.1, 0.105, 0.3, 0.107).settled


def test_a_long_run_timed_for_another_reason_is_a_round() -> None:
    found = Timing(Scripted(0.91))
    assert not found.add_long_run(0.001)
    assert found.seconds == inf
    assert found.add_long_run(0.9)
    assert found.doubt == 1.0
    found.add_round([lambda: None])
    assert found.settled


def test_the_launch_is_that_of_launches_ahead() -> None:
    """A call that could not be launched ahead in most runs waits for the device: it has no launch."""

    class Launching(Scripted):
        def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
            return Timed(1.0, next(self._seconds))

    def launch(*seconds: float) -> float:
        found = Timing(Launching(*seconds))
        for _ in range(len(seconds)):
            found.add_round([lambda: None])
        return found.launch

    assert launch(0.0, 0.3, 0.2, 0.4) == 0.2
    assert launch(0.0, 0.3, 0.0, 0.0) == 0.0


@pytest.mark.scripts
def test_further_rounds_time_only_what_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    iteration = convnet()
    program = trace(iteration)
    slow = program.operations[0].call.target
    timed: list[Any] = []

    def timing_one(_self: Cpu, calls: Sequence[Any]) -> Timed:
        timed.append(calls[0].func)
        return Timed(1e3 / len(timed) if calls[0].func is slow else 1.0)

    monkeypatch.setattr(Cpu, "timed", timing_one)
    running = Rounds(program, residents(program, iteration))
    for _ in range(max(AGREE)):
        running.run()
    assert len({*timed}) > 3
    assert not running.settled
    timed.clear()
    running.run()
    assert {*timed} == {slow}
    running.run(anew=True)
    assert len({*timed}) > 3


def test_a_long_call_runs_once_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round it is the run that counts its memory."""
    iteration = convnet()
    program = trace(iteration)
    timed: list[Any] = []
    once = Cpu.once
    monkeypatch.setattr(Cpu, "once", lambda self, call: (once(self, call)[0], 0.5))
    monkeypatch.setattr(Cpu, "timed", lambda _self, calls: timed.append(calls[0].func) or Timed(0.5))
    running = Rounds(program, residents(program, iteration), ran=True)
    running.run()
    assert not timed
    assert not running.settled
    running.run()
    assert len(timed) == len({id(one) for one in running.measurements()})
    assert running.settled


# ── compared with eager ─────────────────────────────────────────────────────────────────────────────


class HostileClock:
    """A clock by which every operation takes 1 s, and some a slice more. Reading it takes no time."""

    def __init__(self, seed: int) -> None:
        self._random, self._now, self._reads = Random(seed), 0.0, 0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads % 2 == 0:
            self._now += 1.0 + (self._random.uniform(4, 280) if self._random.random() < SLICE_SHARE else 0.0)
        return self._now


def test_each_of_eager_s_operations_counts_with_its_fastest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(8, 8), nn.Tanh())))
    iteration = Iteration(module, (torch.randn(4, 8),), mean_square)
    clock = HostileClock(0)
    monkeypatch.setattr(Cpu, "clock", lambda _self: clock)
    operations = EagerOperations(iteration, Cpu(torch.device("cpu")))
    operations.add_iteration()
    first = operations.seconds
    for _ in range(11):
        operations.add_iteration()
    count = len(trace(iteration).operations)
    assert operations.seconds == pytest.approx(count, abs=2)
    assert first > 5 * count


def test_an_iteration_timed_by_operation_leaves_no_trace() -> None:
    iteration = convnet()
    before = {name: tensor.clone() for name, tensor in iteration.module.state_dict().items()}
    state = torch.get_rng_state()
    EagerOperations(iteration, Cpu(torch.device("cpu"))).add_iteration()
    assert torch.equal(torch.get_rng_state(), state)
    after = iteration.module.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in iteration.module.parameters())


class FakeEager:
    """Eager whose time falls with each iteration to what a list says."""

    seconds = 0.0

    def __init__(self, *seconds: float) -> None:
        self._left = list(seconds)

    def add_iteration(self) -> None:
        self.seconds = self._left.pop(0) if len(self._left) > 1 else self._left[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("eager", "whole", "close", "iterations"),
    [
        ((1.0,), 1.0, True, 0),
        ((1.0,), 50.0, True, 1),
        ((9.0, 5.0, 1.1), 50.0, True, 3),
        ((9.0, 8.9, 8.9, 8.9), 50.0, False, 2),
    ],
    ids=["the iteration", "its operations", "after some iterations", "never"],
)
def test_the_sum_is_compared_with_eager_until_it_is_close_or_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, eager: Sequence[float], whole: float, close: bool, iterations: int
) -> None:
    iteration = convnet()
    program = trace(iteration)
    count = len(program.operations)
    monkeypatch.setattr(Cpu, "timed", lambda _self, _calls: Timed(1.0 / count))
    running = Rounds(program, residents(program, iteration))
    running.run_until_settled()
    fake, done = FakeEager(*eager), list[int]()
    monkeypatch.setattr(fake, "add_iteration", lambda add=fake.add_iteration: (done.append(1), add()))
    monkeypatch.setattr(against_eager, "EagerOperations", lambda *_, **_named: fake)
    found = check_against_eager(iteration, program, running, {"seconds": whole})
    assert found is not None
    assert (found.close, len(done)) == (close, iterations)
    line = doubt_line(running.measurements(), found)
    assert (
        line is None
        if close
        else line is not None and "in eager PyTorch: times may be off by a factor of 9" in line
    )


def test_without_eager_s_time_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    iteration = convnet()
    program = trace(iteration)
    assert check_against_eager(iteration, program, Rounds(program, {}), {"equal": None}) is None


# ── what is said ────────────────────────────────────────────────────────────────────────────────────


def test_what_is_left_is_said() -> None:
    unsure = [Measurement(1.0, 0.0, 0, doubt=0.6), Measurement(1.0, 0.0, 0)]
    assert busy_line(uncertainty(unsure)) == "this machine is busy: times may be 30% off"
    assert busy_line(0.05) is None
    assert busy_line(1.99) == "this machine is busy: times may be 199% off"
    assert busy_line(2.0) == "this machine is busy: times may be off by a factor of 3"
    assert busy_line(127.33) == "this machine is busy: times may be off by a factor of 128"
    assert uncertainty([]) == 0.0
    assert doubt_line(unsure, Check(1.0, 9.0)) == busy_line(0.3)
    assert doubt_line(unsure[1:], Check(1.0, 1.2)) is None


def test_the_command_says_that_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """By a timer in whose slices all runs fall, and no time left to measure further."""
    path = tmp_path / "tiny.py"
    path.write_text(MODEL)
    use(monkeypatch, BusyTimer(0, 1.0))
    monkeypatch.setattr(rounds, "LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(against_eager, "LIMIT_SECONDS", 0.0)
    said = profile(str(path)).source["measured"]["doubt"]
    assert said.startswith("this machine is busy: times may be ")
    done = CliRunner().invoke(main, ["profile", str(path), "-o", str(tmp_path / "tiny.yaml")])
    assert done.exit_code == 0, done.output
    assert "warning: this machine is busy: times may be " in done.output
    assert "this machine is busy" in (tmp_path / "tiny.yaml").read_text()
