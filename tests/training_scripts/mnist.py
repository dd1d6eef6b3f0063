"""Train a small convolutional network on digits, with Adadelta, a schedule and a test each epoch."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 16, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(16 * 6 * 6, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


torch.manual_seed(1)
digits = TensorDataset(torch.randn(28, 1, 16, 16), torch.randint(10, (28,)))
train_loader, test_loader = DataLoader(digits, 8, shuffle=True), DataLoader(digits, 14)
model = Net()
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
losses = []
step = memplan.optimize(model, loss_fn=F.nll_loss, budget=BUDGET)  # memplan
for _epoch in range(3):
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = step(data, targets=target)  # without memplan: loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses += [F.nll_loss(model(data), target, reduction="sum").item() for data, target in test_loader]
    scheduler.step()
