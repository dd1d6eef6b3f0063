"""Train a graph convolutional network on a sparse adjacency matrix, all nodes in one batch."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, entering, leaving):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(entering, leaving) / 4)

    def forward(self, x, adjacency):
        return torch.sparse.mm(adjacency, x @ self.kernel)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConv(12, 16), GraphConv(16, 4)

    def forward(self, x, adjacency):
        x = F.dropout(F.relu(self.gc1(x, adjacency)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


torch.manual_seed(0)
dense = (torch.rand(30, 30) < 0.15).float() + torch.eye(30)
adjacency, x, y = (
    (dense / dense.sum(1, keepdim=True)).to_sparse(),
    torch.randn(30, 12),
    torch.randint(4, (30,)),
)
train, model, losses = torch.randperm(30)[:20], GCN(), []
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, x, adjacency, train, labels):
    return F.nll_loss(model(x, adjacency)[train], labels)


for _epoch in range(6):
    optimizer.zero_grad()
    loss = loss_of(model, x, adjacency, train, y[train])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
