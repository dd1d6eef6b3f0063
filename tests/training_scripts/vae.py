"""Train a variational autoencoder: a tuple as output, noise drawn in forward, a loss of one's own."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.fc3, self.fc4 = nn.Linear(8, 40), nn.Linear(40, 64)

    def forward(self, x):
        hidden = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


torch.manual_seed(1)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, data):
    recon_batch, mu, logvar = model(data)
    return loss_function(recon_batch, data, mu, logvar)


for _epoch in range(2):
    for data in DataLoader(torch.rand(20, 1, 8, 8), 8, shuffle=True):
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
