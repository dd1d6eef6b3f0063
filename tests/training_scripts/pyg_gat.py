"""Train a graph attention network on some of a graph's nodes, which a mask picks."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch_geometric.data import Data
from torch_geometric.nn import GATConv


class GAT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GATConv(12, 8, 4, dropout=0.6)
        self.conv2 = GATConv(32, 4, 1, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = F.elu(self.conv1(F.dropout(x, 0.6, self.training), edge_index))
        return self.conv2(F.dropout(x, 0.6, self.training), edge_index)


torch.manual_seed(0)
data = Data(x=torch.randn(40, 12), edge_index=torch.randint(40, (2, 160)), y=torch.randint(4, (40,)))
data.train_mask = torch.rand(40) < 0.5
model = GAT()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, data):
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


for _epoch in range(6):
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model, data)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
