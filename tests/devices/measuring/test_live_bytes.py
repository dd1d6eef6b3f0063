"""The tracker of live bytes against closed forms: what each call must take, counted by hand."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.devices.measuring.live_bytes import AllocatorEvent, live_curve, live_peak

N = 1000
BYTES = 4 * N  # a float32 tensor of N elements


@pytest.fixture
def x():
    return torch.ones(N)


def test_nothing_taken():
    assert live_peak(lambda: 3) == (0, 0, 3)


def test_a_result_is_alive_when_the_call_returns(x):
    peak = live_peak(lambda: x + x)
    assert (peak.peak_bytes, peak.left_bytes) == (BYTES, BYTES)
    assert peak.result.sum() == 2 * N


@pytest.mark.parametrize("length", [1, 2, 5, 50])
def test_a_chain_that_keeps_everything_takes_its_sum(x, length):
    def call():
        values = [x]
        for _ in range(length):
            values.append(values[-1] + x)
        return values[-1]

    peak = live_peak(call)
    assert (peak.peak_bytes, peak.left_bytes) == (length * BYTES, BYTES)


@pytest.mark.parametrize("length", [2, 5, 50])
def test_a_chain_that_drops_its_inputs_takes_two(x, length):
    def call():
        value = x
        for _ in range(length):
            value = value + x
        return value

    assert live_peak(call)[:2] == (2 * BYTES, BYTES)


def test_matmul_takes_its_output():
    a, b = torch.ones(30, 40), torch.ones(40, 50)
    assert live_peak(lambda: a @ b)[:2] == (4 * 30 * 50, 4 * 30 * 50)


def test_in_place_and_view_take_nothing(x):
    assert live_peak(lambda: x.add_(x))[:2] == (0, 0)
    assert live_peak(lambda: x.view(10, 100).t())[:2] == (0, 0)


@pytest.mark.parametrize(("strided", "tensors"), [(False, 2), (True, 3)])
def test_a_temporary_inside_one_operation_counts(strided, tensors):
    """logsigmoid makes a buffer beside its output, and a contiguous copy of a strided input."""
    values = torch.ones(20, 50).t() if strided else torch.ones(20, 50)
    peak = live_peak(lambda: torch.nn.functional.logsigmoid(values))
    assert (peak.peak_bytes, peak.left_bytes) == (tensors * BYTES, BYTES)


def test_a_block_from_before_counts_neither_when_it_stays_nor_when_it_goes():
    before = [torch.ones(N), torch.ones(N)]

    def call():
        before.pop()
        return torch.empty(2 * N)

    assert live_peak(call)[:2] == (2 * BYTES, 2 * BYTES)


def test_a_block_left_by_one_call_does_not_spoil_the_next(x):
    """Freed between two calls, out of the profiler's sight, its address may be given to another block."""
    for _ in range(20):
        left = live_peak(lambda: x + x).result
        del left
        other = torch.empty(N)
        holder = [other]
        del other
        assert live_peak(holder.clear)[:2] == (0, 0)
        assert live_peak(lambda: x * x)[:2] == (BYTES, BYTES)


def test_backward_counts_on_every_thread_of_autograd():
    weight = torch.ones(N, requires_grad=True)
    peak = live_peak(lambda: (weight * weight).sum().backward())
    assert weight.grad is not None
    assert peak.left_bytes == BYTES
    assert 2 * BYTES <= peak.peak_bytes <= 3 * BYTES + 64


def test_an_error_ends_the_recording(x):
    with pytest.raises(ZeroDivisionError):
        live_peak(lambda: 1 / 0)
    assert live_peak(lambda: x + x)[:2] == (BYTES, BYTES)


def test_a_count_within_a_count(x):
    """Both are right, whatever lies around the inner one, which may fail."""
    kept = []

    def call():
        kept.append(torch.empty(3 * N))
        inner = live_peak(lambda: x + x)
        with pytest.raises(ZeroDivisionError):
            live_peak(lambda: 1 / 0)
        kept.append(torch.empty(N))
        return inner[:2]

    assert live_peak(call) == (4 * BYTES + BYTES, 4 * BYTES, (BYTES, BYTES))


def test_nothing_is_written_to_standard_error(capfd, x):
    live_peak(lambda: x + x)
    assert capfd.readouterr().err == ""


sizes = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=40)


@settings(max_examples=50, deadline=None)
@given(sizes)
def test_random_takes_and_drops(steps):
    """A list that grows by one tensor, or first drops its oldest, against a sum kept by hand."""
    expected_live = expected_peak = 0
    held = []
    for size, drop in steps:
        if drop and held:
            expected_live -= held.pop(0)
        held.append(size)
        expected_live += size
        expected_peak = max(expected_peak, expected_live)

    def call():
        kept = []
        for size, drop in steps:
            if drop and kept:
                kept.pop(0)
            kept.append(torch.empty(size, dtype=torch.uint8))
        return kept

    gc.disable()
    try:
        assert live_peak(call)[:2] == (expected_peak, expected_live)
    finally:
        gc.enable()


def test_curve_ignores_what_it_never_saw_taken():
    blocks = [
        AllocatorEvent(0, 1, 10),
        AllocatorEvent(1, 2, 5),
        AllocatorEvent(2, 9, -99),
        AllocatorEvent(3, 1, -10),
        AllocatorEvent(4, 1, 3),
    ]
    assert list(live_curve(blocks)) == [10, 15, 15, 5, 8]


def test_thousands_of_events_are_counted_in_order(x):
    def call():
        value = x
        for _ in range(4000):
            value = value + x
        return value

    assert live_peak(call)[:2] == (2 * BYTES, BYTES)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_counts_blocks_of_512_bytes():
    x = torch.ones(2**20, device="cuda")

    def call():
        return x + x + x

    assert live_peak(call, "cuda")[:2] == (2 * 2**22, 2**22)
