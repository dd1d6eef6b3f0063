"""Train a diffusion transformer: the loss calls the model itself, and a second model follows by averages."""

from copy import deepcopy

import torch
import memplan  # memplan
from torch import nn


class DiTBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(c)[:, None].chunk(6, dim=-1)
        h = self.norm1(x) * (1 + scale) + shift
        x = x + gate * self.attn(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, width=32, classes=5):
        super().__init__()
        self.embed, self.out = nn.Conv2d(2, width, 2, 2), nn.Linear(width, 8)
        self.time, self.label = nn.Linear(1, width), nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(DiTBlock(width) for _ in range(2))

    def forward(self, x, t, y):
        drop = torch.rand(len(y)) < 0.1
        c = self.time(t.float()[:, None] / 100) + self.label(torch.where(drop, 5, y))
        h = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h, c)
        return self.out(h).reshape(len(x), 4, 4, 2, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(x.shape)


class Diffusion:
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)

    def training_losses(self, model, x, t, model_kwargs):
        noise = torch.randn_like(x)
        a = self.alphas[t][:, None, None, None]
        output = model(a.sqrt() * x + (1 - a).sqrt() * noise, t, **model_kwargs)
        return {"loss": (noise - output).square().mean(dim=(1, 2, 3))}


torch.manual_seed(0)
model, diffusion, losses = DiT(), Diffusion(), []
ema = deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, x, t, y):
    return diffusion.training_losses(model, x, t, {"y": y})["loss"].mean()


for _ in range(5):
    x, y, t = torch.randn(4, 2, 8, 8), torch.randint(5, (4,)), torch.randint(0, 100, (4,))
    loss = loss_of(model, x, t, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for mean, parameter in zip(ema.parameters(), model.parameters(), strict=True):
        mean.mul_(0.99).add_(parameter.data, alpha=0.01)
    losses.append(loss.item())
model = nn.ModuleList([model, ema])
