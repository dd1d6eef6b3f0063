"""Momentum contrast: a key encoder that follows the query encoder, a queue of keys, shuffled batch norm."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn


def encoder():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 12),
    )  # fmt: skip


class MoCo(nn.Module):
    def __init__(self, size=32, momentum=0.99, temperature=0.07):
        super().__init__()
        self.size, self.momentum, self.temperature = size, momentum, temperature
        self.query, self.key = encoder(), encoder()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(12, size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def keys_of(self, images):
        for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            key.data = key.data * self.momentum + query.data * (1.0 - self.momentum)
        order = torch.randperm(len(images))
        keys = F.normalize(self.key(images[order]), dim=1)
        return keys[torch.argsort(order)]

    @torch.no_grad()
    def enqueue(self, keys):
        pointer = int(self.pointer)
        self.queue[:, pointer : pointer + len(keys)] = keys.T
        self.pointer[0] = (pointer + len(keys)) % self.size

    def forward(self, query_images, key_images):
        encoded = encode(query_images)  # without memplan: encoded = self.query(query_images)
        queries = F.normalize(encoded, dim=1)
        keys = self.keys_of(key_images)
        positive = torch.einsum("nc,nc->n", [queries, keys]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [queries, self.queue.clone().detach()])
        self.enqueue(keys)
        return torch.cat([positive, negative], dim=1) / self.temperature


torch.manual_seed(0)
model = MoCo()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
labels, losses = torch.zeros(8, dtype=torch.long), []
encode = memplan.optimize_module(model.query, torch.zeros(8, 3, 16, 16), budget=BUDGET)  # memplan
for _ in range(6):
    one, other = torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16)
    loss = F.cross_entropy(model(one, other), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
