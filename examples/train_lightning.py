"""Lightning: `training_step` returns the step's loss. `python examples/train_lightning.py`"""

from __future__ import annotations

from typing import Any

import lightning
import memplan
import torch
from torch.utils.data import DataLoader
from train_data import sentences, small_gpt2


class Planned(lightning.LightningModule):
    def __init__(self, planned: bool) -> None:
        super().__init__()
        self.model, self.planned = small_gpt2(), planned
        self.step: memplan.Step | None = None
        self.losses: list[float] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.planned and self.step is None:
            self.step = memplan.optimize(self.model, batch, budget="75%", solver="rotor")
        if number == 0:
            torch.manual_seed(1)
        loss = self.model(**batch).loss if self.step is None else self.step(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _number: int) -> None:
        self.losses.append(self.model(**batch).loss.item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(planned: bool) -> tuple[torch.nn.Module, list[float]]:
    """The model, and the losses."""
    module = Planned(planned)
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=1,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        enable_checkpointing=False,
        **silent,
    )
    loaders = DataLoader(sentences(), batch_size=4), DataLoader(sentences(8), batch_size=4)
    trainer.fit(module, *loaders)
    return module.model, module.losses


if __name__ == "__main__":
    print(train(planned=True)[1])
