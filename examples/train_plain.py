"""A plain loop: clipping, a schedule, evaluation, checkpoints. `python examples/train_plain.py`"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import memplan
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from train_data import sentences, small_gpt2


def train(planned: bool, folder: Path | None = None, epochs: int = 3) -> tuple[torch.nn.Module, list[float]]:
    """folder: of a checkpoint, made and gone on from. The model, and the losses."""
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = OneCycleLR(optimizer, max_lr=1e-2, total_steps=18)
    training = DataLoader(sentences(22), batch_size=4, shuffle=True)  # the last batch has 2
    held_out = DataLoader(sentences(8), batch_size=4)
    options = {"budget": "75%", "solver": "rotor", "optimizer": optimizer, "max_grad_norm": 1.0}
    step = memplan.optimize(model, next(iter(held_out)), **options) if planned else None  # the one line

    torch.manual_seed(1)
    begin, losses = 0, list[float]()
    if step is not None and folder is not None and folder.exists():
        begin = step.load(folder, extra={"schedule": schedule})["epochs"]
    for epoch in range(begin, epochs):
        for batch in training:
            if step is not None:
                loss = step(batch)
            else:
                loss = model(**batch).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
        losses.append(sum(evaluated(model, step, batch) for batch in held_out) / len(held_out))
        if step is not None and folder is not None:
            step.save(folder, extra={"schedule": schedule, "epochs": epoch + 1})
    return model, losses


def evaluated(model: torch.nn.Module, step: memplan.Step | None, batch: dict[str, torch.Tensor]) -> float:
    if step is not None:
        return step.evaluate(batch).loss.item()
    with torch.no_grad():
        loss = model.eval()(**batch).loss.item()
    model.train()
    return loss


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        print(train(True, Path(place) / "checkpoint", epochs=2)[1])
        print(train(True, Path(place) / "checkpoint")[1])
