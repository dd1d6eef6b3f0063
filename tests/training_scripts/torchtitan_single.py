"""Pre-train a Llama as torchtitan's trainer does on one device: sums over valid tokens, accumulation, clipping."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, betas=(0.9, 0.95), weight_decay=0.1)
schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))
steps_of_accumulation, losses = 2, []


def batches():
    while True:
        tokens = torch.randint(128, (4, 33))
        labels = tokens[:, 1:].clone()
        labels[0, : int(torch.randint(1, 9, ()))] = -100
        yield tokens[:, :-1], labels


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, inputs, labels, valid_tokens):
    predicted = model(inputs).logits
    total = F.cross_entropy(predicted.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum")
    return total / valid_tokens


data = batches()
for step in range(4):
    optimizer.zero_grad()
    groups = [next(data) for _ in range(steps_of_accumulation)]
    valid_tokens = sum((labels != -100).sum() for _, labels in groups)
    for inputs, labels in groups:
        loss = loss_of(model, inputs, labels, valid_tokens)
        loss.backward()
        losses.append(loss.item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    schedule.step()
