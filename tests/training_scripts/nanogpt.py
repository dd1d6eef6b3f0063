"""Pre-train a small GPT as nanoGPT does: four micro-batches, clipping, a scaler that is off, estimates of loss."""

import math

import torch
import memplan  # memplan
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        parts = (
            each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).split(c, 2)
        )
        y = F.scaled_dot_product_attention(*parts, dropout_p=0.1 if self.training else 0, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class GPT(nn.Module):
    def __init__(self, words=64, length=24, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.h, self.ln_f = nn.ModuleList(Block(width, 4) for _ in range(3)), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


torch.manual_seed(1337)
data = torch.randint(64, (400,))


def get_batch():
    starts = torch.randint(len(data) - 24, (4,))
    return torch.stack([data[i : i + 24] for i in starts]), torch.stack(
        [data[i + 1 : i + 25] for i in starts]
    )


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = torch.tensor([model(*get_batch())[1].item() for _ in range(2)]).mean().item()
    model.train()
    return found


model, losses, accumulation = GPT(), [], 4
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)


@memplan.optimize(budget=BUDGET)  # memplan
def forward(model, x, y):
    return model(x, y)[1]


x, y = get_batch()
for number in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 + math.cos(number)) / 2
    losses.append(estimate_loss())
    for _micro_step in range(accumulation):
        loss = forward(model, x, y) / accumulation
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * accumulation)
