"""A plain loop with FSDP2: `torchrun --nproc-per-node 2 examples/train_fsdp.py`"""

from __future__ import annotations

import memplan
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler
from train_data import sentences, small_gpt2


def train(planned: bool) -> tuple[torch.nn.Module, list[float]]:
    """Return the model, and this rank's losses."""
    model = small_gpt2(dropout=0.0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.transformer.h:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = OneCycleLR(optimizer, max_lr=1e-2, total_steps=12)
    loader = DataLoader(words := sentences(), 4, sampler=(sampler := DistributedSampler(words)))
    step = None
    if planned:  # the one call
        step = memplan.optimize(
            model, next(iter(loader)), budget="75%", optimizer=optimizer, max_grad_norm=1.0, time_limit=2
        )

    losses: list[float] = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
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
    return model, losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(dist.get_rank(), train(planned=True)[1])
    dist.destroy_process_group()
