"""peft: a model with adapters is planned like any other. `python examples/train_peft.py`"""

from __future__ import annotations

import memplan
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from train_data import sentences, small_gpt2


def train(planned: bool) -> tuple[torch.nn.Module, list[float]]:
    """The model, and the losses."""
    config = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.1)
    model = get_peft_model(small_gpt2(), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loader = DataLoader(sentences(), batch_size=4)
    step = (
        memplan.optimize(model, next(iter(loader)), budget="75%", solver="rotor") if planned else None
    )  # the one line

    torch.manual_seed(1)
    losses: list[float] = []
    for batch in loader:
        loss = model(**batch).loss if step is None else step(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


if __name__ == "__main__":
    print(train(planned=True)[1])
