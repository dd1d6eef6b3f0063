"""Autocast given to optimize: bit by bit a loop of PyTorch under torch.autocast."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from not_none import not_none
from torch import Tensor, nn
from torch.nn import functional

BFLOAT16 = torch.bfloat16


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))


def planned(module: nn.Module, **options: Any) -> memplan.Step:
    x, labels = torch.randn(24, 6), torch.randint(3, (24,))
    given: dict[str, Any] = {"budget": "1MB", "solver": "rotor", "loss_fn": functional.cross_entropy}
    return memplan.optimize(module, x, targets=labels, **(given | options))


@pytest.mark.scripts
def test_training_is_that_under_autocast() -> None:
    module = model()
    baseline = copy.deepcopy(module)
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (module, baseline))
    step = planned(module, optimizer=optimizer, autocast=BFLOAT16, return_outputs=True)
    assert any(value.dtype == BFLOAT16 for value in step.plans[0].program.values)
    torch.manual_seed(5)
    for rows in (24, 24, 10):
        x, labels = torch.randn(rows, 6), torch.randint(3, (rows,))
        own = step(x, targets=labels)
        with torch.autocast("cpu", dtype=BFLOAT16):
            output = baseline(x)
            loss = functional.cross_entropy(output, labels)
        loss.backward()
        other.step()
        other.zero_grad()
        assert torch.equal(own, loss)
        assert step.output.dtype == BFLOAT16
        assert torch.equal(step.output, output)
    with torch.no_grad(), torch.autocast("cpu", dtype=BFLOAT16):
        expected = functional.cross_entropy(baseline.eval()(x), labels)
    module.eval()
    assert torch.equal(step.evaluate(x, targets=labels).loss, expected)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), baseline.parameters(), strict=True))


@pytest.mark.scripts
def test_a_step_has_its_own_autocast_or_that_around_optimize() -> None:
    x, labels = torch.randn(24, 6), torch.randint(3, (24,))
    step = planned(model(), autocast=BFLOAT16)
    with torch.autocast("cpu", dtype=BFLOAT16):
        with pytest.raises(
            memplan.MismatchError, match=r"has its own, to torch.bfloat16: call the step without"
        ):
            step(x, targets=labels)
        around = planned(model())
        assert torch.equal(around(x, targets=labels), step_without(step, x, labels))


def step_without(step: memplan.Step, x: Any, labels: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return step(x, targets=labels)


@pytest.mark.parametrize(
    ("autocast", "line"),
    [
        (torch.float16, r"autocast=torch.float16 needs a scaled loss: give scaler=torch.amp.GradScaler"),
        (torch.float32, "autocast=torch.float32: give torch.bfloat16 or torch.float16"),
        (True, "autocast=True: give torch.bfloat16 or torch.float16"),
    ],
)
def test_other_types_are_refused(autocast: Any, line: str) -> None:
    with pytest.raises(memplan.InputError, match=line):
        planned(model(), autocast=autocast)


def test_one_around_it_beside_its_own_is_refused() -> None:
    with (
        torch.autocast("cpu", dtype=BFLOAT16),
        pytest.raises(memplan.InputError, match=r"under torch.autocast: leave one out"),
    ):
        planned(model(), autocast=BFLOAT16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.norm, self.joint = nn.Embedding(16, 32), nn.LayerNorm(32), nn.Linear(32, 96)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        query, key, value = self.joint(self.norm(x)).split(32, dim=-1)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        logits = functional.linear(x, self.embed.weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def test_an_autocast_around_optimize_is_of_forward_and_loss() -> None:
    """As in a loop whose `loss.backward()` stands outside. What is float32 by itself, like attention's
    products, is not cast again in the trace."""
    module, tokens = Attention(), torch.randint(16, (2, 8))
    baseline = copy.deepcopy(module)
    with torch.autocast("cpu", dtype=BFLOAT16):
        step = memplan.optimize(module, tokens, budget="100%", solver="store-all", cache=False)
        loss = step(tokens)
        expected = baseline(tokens)
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    for (name, own), theirs in zip(module.named_parameters(), baseline.parameters(), strict=True):
        assert torch.equal(not_none(own.grad), not_none(theirs.grad)), name
