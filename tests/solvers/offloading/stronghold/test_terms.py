"""STRONGHOLD's window against closed forms for equal layers, and against stepping it through both passes."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.solvers.offloading.stronghold.terms import (
    LayerFigures,
    Overlap,
    fetched_in_time,
    fits,
    iteration_seconds,
    queue_in_time,
    recycled_in_time,
    updated_in_time,
    working_window,
)

LAYER = LayerFigures(
    forward=1.0,
    backward=2.0,
    fetch=0.5,
    forward_return=0.0,
    backward_return=0.5,
    host_update=0.5,
    device_update=0.25,
    weights=10,
    gradients=10,
    states=20,
)

seconds = st.floats(0.1, 4.0)
layers = st.lists(
    st.builds(
        LayerFigures,
        *[seconds] * 5,
        host_update=st.none() | seconds,
        device_update=seconds,
        weights=st.integers(1, 30),
        gradients=st.integers(0, 30),
        states=st.integers(0, 30),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("fetch", [0.3, 1.0, 1.5, 3.0, 3.9])
def test_equal_layers_need_as_many_as_one_fetch_lasts(fetch: float) -> None:
    model = [replace(LAYER, fetch=fetch)] * 12
    window = working_window(model, room=10**9)
    assert window.needed == max(1, ceil(fetch / LAYER.forward))
    hidden = fetch + LAYER.forward_return <= LAYER.forward and fetch + LAYER.backward_return <= LAYER.backward
    assert recycled_in_time(model, 1) == hidden
    if hidden:
        assert (window.size, window.overlap) == (1, Overlap.HIDDEN)
        assert window.seconds == 12 * 3.0 + 0.25
    else:  # only a window of all layers, which fetches nothing, hides everything
        assert window.size == 12
    assert working_window(model, room=150).overlap == (Overlap.HIDDEN if hidden else Overlap.STALLS)


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_equal_layers_need_this_much_memory(size: int) -> None:
    """m layers with gradients, the one that is fetched, the states of the first m; all 8 need no buffer."""
    model = [LAYER] * 8
    needed = size * (10 + 10 + 20) + 10
    assert fits(model, size, needed)
    assert not fits(model, size, needed - 1)
    assert fits(model, 8, 8 * 40)
    assert not fits(model, 8, 8 * 40 - 1)


def test_each_update_can_be_in_time_where_their_queue_is_late() -> None:
    """An update of 4 s, layers of 1 + 2 s: layer 2 has the 6 s of those before it, six updates take 24 s."""
    model = [replace(LAYER, host_update=4.0)] * 8
    assert updated_in_time(model, 2)
    assert not queue_in_time(model, 2)
    assert working_window(model, room=2 * 40 + 10).overlap == Overlap.STALLS
    quick = [replace(LAYER, host_update=2.0)] * 8
    assert updated_in_time(quick, 2)
    assert queue_in_time(quick, 2)
    assert not updated_in_time([replace(LAYER, host_update=6.6)] * 8, 2)


def test_calls_lengthen_the_computations() -> None:
    """P1 has t_fp + 2 t_async, P2 t_bp + 3 t_async, (4) five calls a layer."""
    model = [replace(LAYER, fetch=1.2)] * 4
    assert not fetched_in_time(model, 1)
    assert fetched_in_time(model, 1, 0.11)
    assert iteration_seconds(model, 1, 0.1) == pytest.approx(4 * 3.0 + 4 * 5 * 0.1 + 0.25)


@pytest.mark.scripts
@settings(max_examples=200)
@given(layers, st.integers(1, 9))
def test_memory_is_the_most_that_stepping_the_window_meets(model: list[LayerFigures], size: int) -> None:
    size = min(size, len(model))
    last = len(model) - 1
    peak = 0
    for k in range(len(model)):
        inside = range(min(k, len(model) - size), min(k, len(model) - size) + size)
        coming = k + size
        held = sum(model[i].weights for i in inside) + (model[coming].weights if coming <= last else 0)
        peak = max(peak, held)
    for k in range(last, -1, -1):
        low = max(k - size + 1, 0)
        inside = range(low, low + size)
        coming = k - size
        held = sum(model[i].weights + model[i].gradients for i in inside)
        peak = max(peak, held + (model[coming].weights if coming >= 0 else 0))
    peak += sum(layer.states for layer in model[:size])
    assert fits(model, size, peak)
    assert not fits(model, size, peak - 1)


@settings(max_examples=200)
@given(layers, st.integers(0, 400))
def test_the_window_is_what_its_status_says(model: list[LayerFigures], room: int) -> None:
    window = working_window(model, room)
    sizes = range(1, len(model) + 1)
    fitting = [m for m in sizes if fits(model, m, room)]
    assert window.largest == max(fitting, default=0)
    if window.overlap == Overlap.OUT_OF_MEMORY:
        assert not fitting
        assert window.size == 0
        return
    assert window.size in fitting
    all_terms = [
        m
        for m in sizes
        if fetched_in_time(model, m)
        and recycled_in_time(model, m)
        and updated_in_time(model, m)
        and queue_in_time(model, m)
    ]
    hiding = [m for m in all_terms if m in fitting]
    assert (window.overlap == Overlap.HIDDEN) == bool(hiding)
    if hiding:
        assert window.size == hiding[0]
    else:
        assert window.size == max(fitting)


@settings(max_examples=200)
@given(layers, st.integers(1, 9))
def test_a_queue_in_time_has_each_update_in_time(model: list[LayerFigures], size: int) -> None:
    size = min(size, len(model))
    if queue_in_time(model, size):
        assert updated_in_time(model, size)
