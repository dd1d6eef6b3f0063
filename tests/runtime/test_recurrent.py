"""Fake kernels of the GRU cell: the shapes of the cell's definition, with and without biases."""

import pytest
import torch
from memplan.runtime.calls.fake_kernels import gru_cell, gru_cell_backward
from memplan.runtime.torch_internals import has_fake_kernel


@pytest.mark.parametrize("bias", [True, False])
def test_the_shapes_of_gradients_are_those_of_what_they_are_of(bias):
    batch, hidden = 3, 7
    gates, state = torch.empty(batch, 3 * hidden), torch.empty(batch, hidden)
    one = torch.empty(3 * hidden) if bias else None
    after, saved = gru_cell(gates, gates, state, one, one)
    assert after.shape == state.shape
    made = gru_cell_backward(after, saved, bias)
    given = (gates, gates, state, one, one)
    assert [x is None or x.shape for x in made] == [x is None or x.shape for x in given]


def test_they_are_registered():
    assert has_fake_kernel("aten::_thnn_fused_gru_cell")
    assert has_fake_kernel("aten::mm")
    assert not has_fake_kernel("aten::_thnn_differentiable_gru_cell_backward")
