"""The examples of diffusion LoRAs with frozen weights in 4 bits: planned, bit by bit as in eager PyTorch."""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("example", ["flux_lora", "wan_lora"])
def test_examples_in_4_bits_are_planned(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("bitsandbytes", "diffusers", "peft"):
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    module: Any = import_module(example)
    model, batch, loss_fn, target = module.nf4()
    assert any(weight.dtype == torch.uint8 for weight in model.parameters())
    eager = copy.deepcopy(model)
    first, second = (
        torch.optim.AdamW([weight for weight in one.parameters() if weight.requires_grad], lr=0.01)
        for one in (model, eager)
    )
    step = memplan.optimize(
        model,
        batch,
        targets=target,
        loss_fn=loss_fn,
        budget="70%",
        optimizer=first,
        time_limit=15,
        cache=False,
    )
    for _ in range(2):
        loss = loss_fn(eager(**batch), target)
        loss.backward()
        second.step()
        second.zero_grad()
        assert torch.equal(step(batch, targets=target), loss)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True))
