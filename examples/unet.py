"""A U-Net (Ronneberger et al., 2015, doi:10.1007/978-3-319-24574-4_28) that segments images.

Its skip connections hold early activations until late: hard for per-layer checkpointing.
"""

from itertools import pairwise

import torch
from torch import nn


def double_convolution(channels, width):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, channels, classes, width, depth):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.first = double_convolution(channels, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(double_convolution(thin, wide) for thin, wide in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, thin, 2, stride=2) for thin, wide in pairs)
        self.merge = nn.ModuleList(double_convolution(wide, thin) for thin, wide in pairs)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        x = self.first(images)
        skipped = []
        for block in self.down:
            skipped.append(x)
            x = block(self.pool(x))
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        return self.last(x)


def build(batch=2, side=128, classes=4, width=16, depth=4):
    torch.manual_seed(0)
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(classes, (batch, side, side))
    model = UNet(3, classes, width, depth)
    return model, (images,), nn.functional.cross_entropy, labels
