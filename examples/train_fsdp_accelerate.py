"""accelerate with FSDP2: `torchrun --nproc-per-node 2 examples/train_fsdp_accelerate.py`

accelerate shards on GPUs alone, and makes DistributedDataParallel of the model elsewhere; without a GPU this
example has it shard on CPUs.
"""

from __future__ import annotations

from typing import Any

import memplan
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from fsdp_on_cpus import shard_on_cpus
from torch.utils.data import DataLoader
from train_data import sentences, small_gpt2


def train(planned: bool, **options: Any) -> tuple[torch.nn.Module, list[float]]:
    """Train, and return the model and this rank's losses. options: of the Accelerator."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(fsdp_plugin=plugin, **options)
    model = small_gpt2(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(sentences(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = None
    if planned:  # the step has backward, clipping, and the update by accelerate's optimizer
        step = memplan.optimize(
            model, next(iter(loader)), budget="75%", optimizer=optimizer, max_grad_norm=1.0, time_limit=2
        )

    losses: list[float] = []
    for batch in loader:
        if step is not None:
            loss = step(batch)
        else:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


if __name__ == "__main__":
    if has_none := not torch.cuda.is_available():
        shard_on_cpus()
    print(train(planned=True, cpu=has_none)[1])
