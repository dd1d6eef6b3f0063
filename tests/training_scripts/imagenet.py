"""Train a residual network on images as PyTorch's ImageNet example does: accuracy of each batch, zero_grad late."""

import torch
import memplan  # memplan
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu_(self.layers(x) + x)


torch.manual_seed(0)
stem = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
model = nn.Sequential(*stem, *[Block(16) for _ in range(4)], *head)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
losses = []
model.train()
step = memplan.optimize(model, loss_fn=criterion, return_outputs=True, budget=BUDGET)  # memplan
for _ in range(6):
    images, target = torch.randn(8, 3, 24, 24), torch.randint(10, (8,))
    loss = step(images, targets=target)  # without memplan: output = model(images)
    output = step.output  # without memplan: loss = criterion(output, target)
    losses += [loss.item(), (output.argmax(1) == target).float().mean().item()]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
