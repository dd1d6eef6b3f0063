"""One call's time and memory, against calls whose cost is known by construction."""

import time
from collections import Counter
from itertools import chain, repeat
from math import isfinite

import pytest
import torch
from memplan.devices.device.cpu import Cpu
from memplan.devices.device.device import Timed
from memplan.devices.measuring.measure import MOST_COPIES, copies, measure
from memplan.devices.measuring.timing import FEWEST, MOST, Timing

N = 1000


@pytest.fixture
def x():
    return torch.ones(N)


@pytest.fixture(autouse=True)
def _two_threads():
    """With one, a call that sleeps takes no time: it takes none of the processor's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_the_time_of_a_call_that_sleeps():
    measured = measure([lambda: time.sleep(0.01)])
    assert 0.01 <= measured.seconds < 0.05


def test_with_one_thread_it_is_the_processors_time_that_counts():
    torch.set_num_threads(1)
    assert measure([lambda: time.sleep(0.01)]).seconds < 0.002

    def busy():
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            time.sleep(0.0005)

    assert 0.004 <= measure([busy]).seconds < 0.01


def test_one_slow_run_among_many_does_not_move_the_time():
    runs = iter(range(10_000))
    measured = measure([lambda: time.sleep(0.05 if next(runs) == 4 else 0.001)])
    assert 0.001 <= measured.seconds < 0.02


def test_the_spread_tells_steady_from_wild():
    runs = iter(range(10_000))
    steady = measure([lambda: time.sleep(0.004)])
    wild = measure([lambda: time.sleep((0.001, 0.012)[next(runs) % 2])])
    assert steady.spread < wild.spread
    assert wild.spread > 0.3


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(0.0, FEWEST + 1, MOST), (0.03, FEWEST, FEWEST)])
def test_a_fast_call_runs_more_often_than_a_slow_one(seconds, fewest, most):
    runs = Counter()

    def call():
        runs["run"] += 1
        time.sleep(seconds)

    measure([call])
    first_and_tracked = 2
    assert 2 * fewest <= runs["run"] - first_and_tracked <= 2 * most


def test_what_is_set_up_once_belongs_to_no_call(x):
    cache = []

    def call():
        if not cache:
            cache.append(torch.empty(100 * N))
        return x + x

    assert measure([call]).peak_bytes == 4 * N


def test_the_copies_take_turns():
    runs = Counter()
    calls = [lambda name=name: runs.update(name) for name in "abcd"]
    measure(calls)
    assert max(runs.values()) - min(runs.values()) <= 3


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        (lambda x: x + x, N),
        (lambda x: x.view(10, 100).t(), 0),
        (lambda x: x.add_(x), 0),
        (lambda x: (x + x) * x, 2 * N),
        (lambda x: torch.split(x + x, 100), N),
        (lambda x: torch.nn.functional.logsigmoid(x), 2 * N),
        (lambda x: (torch.empty(3 * N), None)[1], 3 * N),
    ],
    ids=["add", "view", "in place", "temporary", "views of a new tensor", "buffer inside", "no result"],
)
def test_the_peak_is_what_is_above_the_inputs(x, call, elements):
    assert measure([lambda: call(x)]).peak_bytes == 4 * elements


def test_the_results_storages_are_measured_not_believed(x):
    wide, loss = torch.ones(3, 10), torch.nn.functional.mse_loss
    assert measure([lambda: (x + x, x > 0, 5)]).result_bytes == (4 * N, N, 0)
    assert measure([lambda: wide + wide]).result_bytes == (120,)
    assert measure([lambda: loss(x, x)]).result_bytes == (4 * N,)


def test_copies_fill_the_cache_and_no_more(monkeypatch):
    monkeypatch.setattr(Cpu, "cache_bytes", lambda _self: 32 * 2**20)
    assert copies(64 * 2**20) == 1
    assert copies(32 * 2**20) == 1
    assert copies(8 * 2**20) == 4
    assert copies(3 * 2**20) == 11
    assert copies(100) == copies(0) == MOST_COPIES


def test_a_giant_cache_does_not_make_profiling_large(monkeypatch):
    monkeypatch.setattr(Cpu, "cache_bytes", lambda _self: 2**40)
    assert copies(16 * 2**20) == 4


def test_larger_inputs_take_longer():
    small, large = torch.ones(2**10), torch.ones(2**22)
    assert measure([lambda: small + small]).seconds < measure([lambda: large + large]).seconds


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_events_time_the_kernel_not_its_launch():
    x = torch.ones(2**26, device="cuda")
    measured = measure([lambda: x + x], "cuda")
    assert measured.peak_bytes == 4 * 2**26
    assert 2e-5 < measured.seconds < 0.1


@pytest.mark.parametrize(("later", "settled"), [(0.0, True), (5e-3, False)])
def test_no_figure_divides_by_a_clock_that_does_not_move_during_a_call(later, settled):
    ticks = chain(repeat(0.0, MOST), repeat(later))

    class Standing(Cpu):
        def timed(self, calls):
            return Timed(next(ticks))

    timing = Timing(Standing(torch.device("cpu")))
    for _ in range(2):
        timing.add_round([lambda: None])
    assert timing.settled is settled
    assert isfinite(timing.doubt)
    assert isfinite(timing.spread)
