"""Classify graphs with PyTorch Geometric: batches of Data objects, each with other numbers of nodes and edges."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv, global_add_pool

torch.manual_seed(0)


def graph(i):
    nodes = 5 + i % 4
    edges = torch.randint(nodes, (2, 3 * nodes))
    return Data(x=torch.randn(nodes, 6), edge_index=edges, y=torch.tensor([i % 3]))


class GIN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(GINConv(MLP([width, 16, 16])) for width in (6, 16))
        self.mlp = MLP([16, 16, 3], norm=None, dropout=0.5)

    def forward(self, x, edge_index, batch, batch_size):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.mlp(global_add_pool(x, batch, size=batch_size))


loader = DataLoader([graph(i) for i in range(20)], batch_size=6, shuffle=True)
model = GIN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, x, edge_index, batch, batch_size, y):
    return F.cross_entropy(model(x, edge_index, batch, batch_size), y)


for _epoch in range(2):
    model.train()
    for data in loader:
        optimizer.zero_grad()
        loss = loss_of(model, data.x, data.edge_index, data.batch, data.batch_size, data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
