"""transformers' Trainer: `compute_loss` returns the step's loss. `python examples/train_trainer.py`"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir
from typing import Any

import memplan
import torch
from train_data import sentences, small_gpt2
from transformers import Trainer, TrainingArguments


class PlannedTrainer(Trainer):
    step: memplan.Step | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        if self.step is None:
            self.step = memplan.optimize(model, inputs, budget="75%", solver="rotor")
        return self.step(inputs)


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
    kind = PlannedTrainer if planned else Trainer
    trainer = kind(small_gpt2(dropout=0.0), arguments, train_dataset=sentences(), eval_dataset=sentences(8))
    trainer.train()
    return trainer.model, [row[key] for row in trainer.state.log_history for key in row if "loss" in key]


if __name__ == "__main__":
    print(train(planned=True)[1])
