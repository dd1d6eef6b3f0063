"""Train a small transformer language model by Fabric, as in its example of a language model."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=80, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, target):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.layers(self.embed(tokens), mask=mask, is_causal=True)
        return F.log_softmax(self.head(hidden), dim=-1)


fabric = Fabric(accelerator="cpu", devices=1)
fabric.seed_everything(42)
model = LanguageModel()
text = torch.randint(80, (20, 17))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), 4, shuffle=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
model.train()
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, tokens, target):
    return F.nll_loss(model(tokens, target).flatten(0, 1), target.flatten())


for _epoch in range(2):
    for tokens, target in loader:
        optimizer.zero_grad()
        loss = loss_of(model, tokens, target)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, clip_val=0.25)
        optimizer.step()
        losses.append(loss.item())
