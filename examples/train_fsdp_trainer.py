"""transformers' Trainer with FSDP2: `torchrun --nproc-per-node 2 examples/train_fsdp_trainer.py`

accelerate, which the Trainer shards by, does so on GPUs alone; without a GPU this example has it
shard on CPUs.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir
from typing import Any

import memplan
import torch
from fsdp_on_cpus import shard_on_cpus
from train_data import sentences, small_gpt2
from transformers import Trainer, TrainingArguments


def train(planned: bool, **options: Any) -> tuple[torch.nn.Module, list[float]]:
    """Train, and return the model, and the losses and norms that are logged.

    options: of TrainingArguments.
    """
    arguments = TrainingArguments(
        str(Path(gettempdir()) / "memplan-example"),
        fsdp=True,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", **options},
    )
    trainer = Trainer(
        small_gpt2(dropout=0.0), arguments, train_dataset=sentences(), eval_dataset=sentences(8)
    )
    if planned:
        memplan.optimize_trainer(trainer, budget="75%", time_limit=2)  # the one line
    trainer.train()
    logged = ("loss", "grad_norm", "eval_loss")
    return trainer.model, [row[key] for row in trainer.state.log_history for key in logged if key in row]


if __name__ == "__main__":
    if has_none := not torch.cuda.is_available():
        shard_on_cpus()
    print(train(planned=True, use_cpu=has_none)[1])
