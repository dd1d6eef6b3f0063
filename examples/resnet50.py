"""ResNet-50 (He et al., 2016, doi:10.1109/CVPR.2016.90), written out: bottlenecks, batch normalisation."""

import torch
from torch import nn

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        wide = EXPANSION * width
        self.body = nn.Sequential(
            *normalised(nn.Conv2d(channels, width, 1, bias=False)),
            nn.ReLU(inplace=True),
            *normalised(nn.Conv2d(width, width, 3, stride, padding=1, bias=False)),
            nn.ReLU(inplace=True),
            *normalised(nn.Conv2d(width, wide, 1, bias=False)),
        )
        same = channels == wide and stride == 1
        projection = nn.Conv2d(channels, wide, 1, stride, bias=False)
        self.shortcut = nn.Identity() if same else nn.Sequential(*normalised(projection))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def normalised(convolution):
    return convolution, nn.BatchNorm2d(convolution.out_channels)


def resnet50(classes):
    layers = [
        *normalised(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for stage, (blocks, width) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride=2 if stage and not block else 1))
            channels = EXPANSION * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def build(batch=8, side=96, classes=100):
    torch.manual_seed(0)
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(classes, (batch,))
    return resnet50(classes), (images,), nn.functional.cross_entropy, labels
