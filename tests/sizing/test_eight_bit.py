"""Optimizer states of 8 bits: bytes by the closed form, and what changes in a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.model.iteration import Iteration
from memplan.profiling.profile.loops import state_elements
from memplan.sizing.eight_bit import state_bytes, with_eight_bit_states
from memplan.tracing.trace import trace
from memplan.updates.choice import OptimizerChoice, updated
from torch import nn


@pytest.mark.parametrize(
    ("elements", "size"),
    [(1, 4), (4095, 16_380), (4096, 4096 + 64), (4097, 4097 + 68), (1_000_000, 1_000_000 + 4 * 3907)],
)
def test_the_bytes_of_a_state(elements: int, size: int) -> None:
    assert state_bytes(elements) == size


@given(st.integers(4096, 10**10))
def test_a_large_state_takes_a_byte_and_a_sixtyfourth_per_element(elements: int) -> None:
    assert elements * 65 / 64 <= state_bytes(elements) < elements * 65 / 64 + 4


def graph() -> Graph:
    draft = Draft("two weights")
    for name, count in (("large", 8192), ("small", 100)):
        weight = draft.tensor(name, 4 * count, Kind.PARAMETER)
        states = [draft.tensor(f"{name}.{state}", 4 * count, Kind.OPTIMIZER_STATE) for state in ("m", "v")]
        gradient = draft.tensor(f"{name}.grad", 4 * count, Kind.PARAMETER_GRADIENT)
        draft.operation(f"{name}/backward", time=1.0, writes=[gradient], phase=Phase.BACKWARD)
        draft.operation(
            f"{name}/update", time=7.0, reads=[gradient], mutates=[weight, *states], phase=Phase.UPDATE
        )
    return draft.graph()


def test_states_and_updates_alone_change() -> None:
    before = graph()
    elements = {
        before.tensor_index[f"{name}.{s}"]: n for name, n in (("large", 8192), ("small", 100)) for s in "mv"
    }
    after = with_eight_bit_states(before, elements, 512)
    validate(after)
    is_state = before.tensors.kind == Kind.OPTIMIZER_STATE
    assert after.tensors.bytes[is_state].tolist() == [8704, 8704, 512, 512]  # 8,320 and 400, in blocks of 512
    assert np.array_equal(after.tensors.bytes[~is_state], before.tensors.bytes[~is_state])
    # 7 passes over 32 KiB become: gradient once, weight twice, two states of 8.5 KiB twice each.
    assert after.operations.time[1] == pytest.approx((3 * 32_768 + 4 * 8704) / 32_768)
    assert after.operations.time[[0, 2]].tolist() == [1.0, 1.0]


def test_masters_stay_in_float32() -> None:
    module, x = nn.Linear(64, 32).bfloat16(), torch.ones(4, 64, dtype=torch.bfloat16)
    choice = OptimizerChoice("adamw", master_weights=True)
    program = trace(updated(Iteration(module, (x,), torch.sum), choice))
    names = {program.storages[x].name for x in state_elements(program)}
    assert names == {
        f"{weight}.{state}" for weight in ("weight", "bias") for state in ("exp_avg", "exp_avg_sq")
    }
