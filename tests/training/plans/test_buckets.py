"""Batches padded to a few lengths: a few plans, plain PyTorch's bits on the padded batch, its mathematics on
the batch as it was."""

from __future__ import annotations

import copy
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

PAD = {"tokens": 0, "mask": 0, "labels": -100}
LENGTHS = (12, 7, 16, 9, 3)


class Model(nn.Module):
    """Attention under a mask, dropout; `sees_padding`: another mean of the loss."""

    def __init__(self, *, sees_padding: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.ignored = 0 if sees_padding else -100

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layer(self.table(tokens), src_key_padding_mask=mask == 0))
        labels = labels.clamp(min=self.ignored)
        return {"logits": logits, "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def batch(length: int, seed: int = 7) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    tokens = torch.randint(1, 20, (4, length))
    return {"tokens": tokens, "mask": torch.ones_like(tokens), "labels": tokens.roll(1, 1)}


def padded(given: dict[str, Tensor], to: int) -> dict[str, Tensor]:
    more = to - given["tokens"].shape[1]
    return {name: functional.pad(tensor, (0, more), value=PAD[name]) for name, tensor in given.items()}


def planned(module: nn.Module, **options: Any) -> Any:
    given: dict[str, Any] = {
        "budget": "100%",
        "solver": "store-all",
        "pad_values": PAD,
        "pad_to_lengths": (8, 16),
    }
    return memplan.optimize(module, batch(12), **(given | options))


@pytest.mark.scripts
def test_padded_batches_train_as_plain_pytorch_on_them() -> None:
    module = Model()
    baseline = copy.deepcopy(module)
    own, theirs = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (module, baseline))
    step = planned(module, optimizer=own)
    torch.manual_seed(11)
    losses = [step(batch(length)) for length in LENGTHS]
    assert sorted(plan.program.values[plan.program.inputs["tokens"]].shape for plan in step.plans) == [
        (4, 8),
        (4, 16),
    ]
    torch.manual_seed(11)
    for length, loss in zip(LENGTHS, losses, strict=True):
        expected = baseline(**padded(batch(length), 8 if length <= 8 else 16))["loss"]
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        assert torch.equal(loss, expected.detach())
    for one, other in zip(module.parameters(), baseline.parameters(), strict=True):
        assert torch.equal(one, other)
    evaluated = step.evaluate(batch(5)).loss
    with torch.no_grad():
        expected = baseline.eval()(**batch(5))["loss"]
    assert torch.allclose(evaluated, expected, rtol=1e-5)


@pytest.mark.scripts
def test_the_longest_is_planned_first_and_serves_where_there_are_no_more_plans() -> None:
    step = planned(Model(), max_plans=1, budget="1MB")
    for length in LENGTHS:
        step(batch(length))
    assert len(step.plans) == 1
    with pytest.warns(UserWarning, match="the plan used least recently goes"):
        step(batch(17))
    (only,) = step.plans
    step(batch(4))
    assert step.plans != [only]  # that of 17 serves no padded batch
    with pytest.raises(memplan.MismatchError, match="tokens is 4 long, mask is 4 long, labels is 5 long"):
        step(batch(4) | {"labels": batch(5)["labels"]})


@pytest.mark.parametrize("length", [12, 16])
def test_padding_that_is_not_ignored_is_refused(length: int) -> None:
    """Also where the example itself needs none."""
    module, example = Model(sees_padding=True), batch(length)
    before = torch.get_rng_state()
    with pytest.raises(memplan.DifferenceError, match=r"padding is not ignored: losses of 12 padded to 16"):
        memplan.optimize(
            module, example, budget="100%", solver="store-all", pad_values=PAD, pad_to_lengths=16
        )
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_wrong_with_pad_and_buckets_is_told() -> None:
    for wrong, message in (
        ({"pad_to_lengths": None}, "pad_values and pad_to_lengths go together"),
        ({"pad_values": None}, "pad_values and pad_to_lengths go together"),
        ({"pad_to_lengths": (0, 8)}, r"pad_to_lengths=\(0, 8\): give the lengths"),
        (
            {"pad_values": {"token": 0}},
            "pad_values names token, which is not an input: there are tokens, mask, labels",
        ),
        (
            {"pad_values": {"tokens": "0"}},
            r"pad_values\['tokens'\] is '0': give a value, or a value and a dimension",
        ),
    ):
        with pytest.raises(memplan.InputError, match=message):
            planned(Model(), **wrong)


def test_rows_are_padded_in_another_dimension() -> None:
    """A smaller last batch takes the plan of the others; targets are padded with it."""
    torch.manual_seed(3)
    module, x, labels = nn.Linear(6, 3), torch.randn(8, 6), torch.randint(3, (8,))
    pad: dict[Any, Any] = {0: (0, 0), "targets": (-100, 0)}
    step = memplan.optimize(
        module,
        x,
        targets=labels,
        loss_fn=functional.cross_entropy,
        budget="100%",
        solver="store-all",
        pad_values=pad,
        pad_to_lengths=8,
    )
    assert torch.allclose(
        step(x[:3], targets=labels[:3]), functional.cross_entropy(module(x[:3]), labels[:3])
    )
    assert len(step.plans) == 1
