"""Train PyTorch's word-level Transformer: its mask kept in an attribute, clipping, updates written by hand."""

import math

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn


class TransformerModel(nn.Module):
    def __init__(self, words=60, width=32):
        super().__init__()
        self.src_mask = None
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.decoder, self.width = nn.Embedding(words, width), nn.Linear(width, words), width

    def forward(self, source):
        if self.src_mask is None or self.src_mask.size(0) != len(source):
            self.src_mask = torch.log(torch.tril(torch.ones(len(source), len(source))))
        hidden = self.encoder(self.embed(source) * math.sqrt(self.width), mask=self.src_mask)
        return F.log_softmax(self.decoder(hidden), dim=-1).view(-1, 60)


torch.manual_seed(0)
model = TransformerModel()
criterion = nn.NLLLoss()
text, losses = torch.randint(60, (50, 4)), []
model.train()
step = memplan.optimize(model, loss_fn=criterion, budget=BUDGET)  # memplan
for start in range(0, 49, 12):
    length = min(12, 49 - start)
    data, targets = text[start : start + length], text[start + 1 : start + 1 + length].reshape(-1)
    model.zero_grad()
    loss = step(data, targets=targets)  # without memplan: loss = criterion(model(data), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.5)
    losses.append(loss.item())
