"""Recurrent layers: fake kernels of the GRU cell, with and without biases; cuDNN's layers are refused."""

import traceback

import pytest
import torch
from memplan.devices.calls.fake_kernels import gru_cell, gru_cell_backward
from memplan.model.iteration import Iteration
from memplan.torch_support.hints import hint
from memplan.torch_support.torch_operators import has_fake_kernel
from memplan.torch_support.unsupported import TraceError
from memplan.tracing.trace import trace
from torch import nn


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


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_layers_that_run_as_cudnns_are_refused_with_the_way_out(layer, monkeypatch):
    """They draw from a state that no schema declares, and ask for addresses of tensors that have none."""
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda _tensor: True)
    iteration = Iteration(layer(4, 4), (torch.randn(2, 3, 4),), lambda output: output[0].sum())
    with pytest.raises(
        TraceError, match=r"set torch\.backends\.cudnn\.enabled = False before the model runs"
    ):
        trace(iteration)


def test_an_address_that_a_recurrent_layer_takes_is_refused_with_the_way_out():
    """On a GPU `flatten_parameters` takes the addresses of weights before the layer's function is called."""
    where = traceback.FrameSummary("torch/nn/modules/rnn.py", 200, "flatten_parameters", line="w.data_ptr()")
    advice, reason = hint([where], "Cannot access data pointer of Tensor (e.g. FakeTensor)")
    assert "set torch.backends.cudnn.enabled = False" in advice
    assert "cuDNN" in reason
    elsewhere = traceback.FrameSummary("model.py", 200, "forward", line="w.data_ptr()")
    assert "custom_op" in hint([elsewhere], "Cannot access data pointer of Tensor (e.g. FakeTensor)")[0]
