"""Fine-tune a GPT of litgpt on one device: Fabric, accumulation by no_backward_sync, validation."""

import torch
import memplan  # memplan
from lightning.fabric import Fabric
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy

fabric = Fabric(devices=1, accelerator="cpu", precision="32-true")
fabric.seed_everything(0)
config = Config(
    name="small", block_size=32, vocab_size=96, padded_vocab_size=96, n_layer=3, n_head=4, n_embd=32,
    n_query_groups=2, rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP", intermediate_size=64,
)  # fmt: skip
with fabric.init_module():
    model = GPT(config)
model = fabric.setup_module(model)
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1))
rows = torch.randint(1, 96, (24, 24))
batches = [{"input_ids": rows[i : i + 4], "labels": rows[i : i + 4]} for i in range(0, 24, 4)]
accumulation, losses = 2, []


def compute_loss(model, input_ids, labels):
    logits = model(input_ids)
    return chunked_cross_entropy(logits[..., :-1, :], labels[..., 1:], chunk_size=0)


compute_loss = memplan.optimize(compute_loss, budget=BUDGET)  # memplan
for iteration, batch in enumerate(batches, 1):
    is_accumulating = iteration % accumulation != 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        loss = compute_loss(model, batch["input_ids"], batch["labels"])
        fabric.backward(loss / accumulation)
    losses.append(loss.item())
    if not is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
    if iteration == 4:
        with torch.no_grad():
            model.eval()
            losses.append(compute_loss(model, batch["input_ids"], batch["labels"]).item())
            model.train()
