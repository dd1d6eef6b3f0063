"""`optimize_trainer(split=…)`: a language model's logits in pieces in transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.profiling.splitting.split import SPLIT

pytestmark = pytest.mark.scripts


def trained(folder: Path, accumulate: int, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return the trained model, with dropout, and its regions in pieces."""
    hub = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hub.GPT2Config(vocab_size=4000, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    model = hub.GPT2LMHeadModel(config)
    words = torch.randint(4000, (8, 64))
    arguments = hub.TrainingArguments(
        str(folder),
        max_steps=2,
        optim="sgd",  # AdamW makes updates of one size of gradients that are roundings of zero
        learning_rate=0.1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"input_ids": each, "labels": each} for each in words]
    trainer = hub.Trainer(model, arguments, train_dataset=data)
    if not options:
        trainer.train()
        return model, {}
    loss = memplan.optimize_trainer(trainer, progress=False, cache=False, time_limit=1, **options)
    trainer.train()
    assert loss.step is not None
    return model, loss.step.plan.graph.source.get(SPLIT, {})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_loss_and_backward_are_one_region(tmp_path: Path, accumulate: int) -> None:
    plain, _ = trained(tmp_path, accumulate)
    model, regions = trained(tmp_path, accumulate, budget="60%", split=True)
    (region,) = regions.values()
    products = [name for name in region["operations"] if "lm_head" in name and "mm" in name]
    assert len(products) == 3
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=1e-5, atol=1e-6)


def test_exact_pieces_train_the_trainers_bits(tmp_path: Path) -> None:
    plain, _ = trained(tmp_path, 2)
    model, regions = trained(tmp_path, 2, budget="85%", split="exact")
    assert regions
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
