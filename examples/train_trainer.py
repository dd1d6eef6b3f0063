"""transformers' Trainer: one line behind it. `python examples/train_trainer.py`"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir
from typing import Any

import memplan
import torch
from train_data import sentences, small_gpt2
from transformers import Trainer, TrainingArguments


def train(planned: bool, **options: Any) -> tuple[torch.nn.Module, list[float]]:
    """options: of TrainingArguments. The model, and the losses."""
    arguments = TrainingArguments(
        str(Path(gettempdir()) / "memplan-example"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(small_gpt2(), arguments, train_dataset=sentences(), eval_dataset=sentences(8))
    if planned:
        memplan.optimize_trainer(trainer, budget="75%", solver="rotor")  # the one line
    trainer.train()
    return trainer.model, [row[key] for row in trainer.state.log_history for key in row if "loss" in key]


if __name__ == "__main__":
    print(train(planned=True)[1])
