"""accelerate: the step in the place of the model's call. `python examples/train_accelerate.py`"""

from __future__ import annotations

from typing import Any

import memplan
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from train_data import sentences, small_gpt2


def train(planned: bool, **options: Any) -> tuple[torch.nn.Module, list[float]]:
    """options: of the Accelerator. The model, and the losses."""
    accelerator = Accelerator(gradient_accumulation_steps=2, **options)
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(sentences(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = (
        memplan.optimize(model, next(iter(loader)), budget="75%", solver="rotor") if planned else None
    )  # the one line

    torch.manual_seed(1)
    losses: list[float] = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss if step is None else step(batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


if __name__ == "__main__":
    print(train(planned=True)[1])
