"""The least that works: a perceptron in pure torch. `build` returns the module, its inputs, the loss."""

import torch
from torch import nn


def build(layers=8, width=512, batch=1024):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(layers)]
    return nn.Sequential(*blocks), (torch.randn(batch, width),), lambda output: output.square().mean()
