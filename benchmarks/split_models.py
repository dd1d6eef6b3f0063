"""Small models as in PyTorch's own examples: mnist, dcgan's discriminator, imagenet's ResNet-18, vae."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mnist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
        )

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return functional.nll_loss(functional.log_softmax(self.features(images), 1), targets)


class Discriminator(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
        for times in (1, 2, 4):
            layers.append(nn.Conv2d(times * width, 2 * times * width, 4, 2, 1, bias=False))
            layers += [nn.BatchNorm2d(2 * times * width), nn.LeakyReLU(0.2, True)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy(self.layers(images).view(-1), targets)


class Block(nn.Module):
    def __init__(self, channels: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU(True)
        )
        self.second = nn.Sequential(nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made))
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made)
            )

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(images)) + self.shortcut(images))


class ResNet18(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        sizes = (64, 64), (64, 128), (128, 256), (256, 512)
        blocks = [
            Block(made if second else channels, made, 1 if second or made == channels else 2)
            for channels, made in sizes
            for second in (False, True)
        ]
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)
        self.layers = nn.Sequential(*stem, *blocks, *head)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(images), targets)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(784, 400), nn.Linear(400, 784)
        self.mean, self.variance, self.back = nn.Linear(400, 20), nn.Linear(400, 20), nn.Linear(20, 400)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.inner(images))
        mean, variance = self.mean(hidden), self.variance(hidden)
        drawn = mean + torch.randn_like(variance) * torch.exp(0.5 * variance)
        made = torch.sigmoid(self.outer(functional.relu(self.back(drawn))))
        lost = functional.binary_cross_entropy(made, images, reduction="sum")
        return lost - 0.5 * torch.sum(1 + variance - mean.square() - variance.exp())


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model and a batch."""
    torch.manual_seed(0)
    if name == "mnist":
        return Mnist(), (torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))
    if name == "dcgan":
        return Discriminator(), (torch.randn(64, 3, 64, 64), torch.rand(64))
    if name == "resnet18":
        return ResNet18(), (torch.randn(8, 3, 224, 224), torch.randint(1000, (8,)))
    return Autoencoder(), (torch.rand(128, 784),)
