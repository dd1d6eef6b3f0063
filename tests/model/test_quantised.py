"""Weights in 4 bits for GPUs that are not here: bytes of bitsandbytes, dequantised where they are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memplan.model.attached import attached_places, read_attached
from memplan.model.iteration import Iteration
from memplan.model.lora import LowRank, with_adapters
from memplan.model.quantised import KINDS, QuantisedLinear
from memplan.tracing.trace import trace
from torch import Tensor, nn


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 192, dtype=torch.bfloat16), nn.GELU(), nn.Linear(192, 96))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_bitsandbytes(kind: str) -> None:
    bitsandbytes: Any = pytest.importorskip("bitsandbytes")
    nested = kind == "nf4-nested"
    layer = bitsandbytes.nn.Linear4bit(256, 192, bias=False, quant_type="nf4", compress_statistics=nested)
    layer.to("cpu")
    theirs = [layer.weight, *read_attached(attached_places(layer)).values()]
    ours = QuantisedLinear((256, 192), None, torch.empty(()), kind)
    tensors = (*ours.parameters(), *ours.buffers())
    assert sorted(each.nbytes for each in tensors) == sorted(each.nbytes for each in theirs)


def test_weights_are_dequantised_in_forward_and_in_backward() -> None:
    module = network()
    with_adapters(module, LowRank(4), "nf4-nested")

    def loss(x: Tensor) -> Tensor:
        return x.float().square().mean()

    program = trace(Iteration(module, (torch.randn(8, 256, dtype=torch.bfloat16),), loss))
    made = [
        program.values[one.call.outputs[0] or 0]
        for one in program.operations
        if "dequantise_weight" in one.name
    ]
    # The first layer's input needs no gradient: its weight is dequantised once.
    assert [each.shape for each in made] == [(192, 256), (96, 192), (96, 192)]
    assert [each.dtype for each in made] == [torch.bfloat16, torch.float32, torch.float32]
    trained = {name for name in program.gradients if "lora_" in name}
    assert trained == set(program.gradients)
    assert len(trained) == 4


def test_output_embeddings_stay_as_they_are() -> None:
    module = network()
    module.classifier = nn.Linear(96, 4)
    with_adapters(module, LowRank(4), "nf4")
    assert type(module.classifier) is nn.Linear
    assert type(module[0].base_layer) is QuantisedLinear
