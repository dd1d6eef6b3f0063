"""A model file with weights of bitsandbytes, which no fake tensor can become: estimated for an absent GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from memplan.profiling.profile.estimate import estimate

pytest.importorskip("bitsandbytes")

MODEL = """
import bitsandbytes, torch
from torch import nn

def build():
    quantised = bitsandbytes.nn.Linear4bit(64, 128, bias=False, compute_dtype=torch.float32, quant_type="nf4")
    module = nn.Sequential(nn.Linear(64, 64), quantised, nn.Linear(128, 4)).to("cpu")
    return module, (torch.randn(4, 64),), lambda output: output.square().mean()
"""


def test_weights_of_bitsandbytes_are_estimated(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    graph = estimate(str(file), "rtx3060")
    sizes = dict(zip(graph.tensors.name, graph.tensors.bytes.tolist(), strict=True))
    assert sizes["1.weight"] == 64 * 128 // 2
    assert sizes["1.weight.quant_state.absmax"] == 512  # a GPU's allocator gives whole blocks
    assert sizes["1/dequantize_4bit"] == sizes["1/backward/dequantize_4bit"] == 64 * 128 * 4
