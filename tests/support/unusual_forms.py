"""Iterations whose kernels return other forms than PyTorch's fake kernels say."""

from __future__ import annotations

import torch
from memplan.model.iteration import Iteration
from torch import nn


def mean_square(output):
    return output.float().square().mean()


class Recurrent(nn.Module):
    """An LSTM keeps a workspace of a size that only the kernel knows."""

    def __init__(self, **options):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, **options)
        self.out = nn.LazyLinear(4)

    def forward(self, x):
        return mean_square(self.out(self.lstm(x)[0]))


def lstm(**options):
    module, x = Recurrent(**options), torch.randn(3, 5, 8)
    module(x)
    return Iteration(module, (x,))


class Points(nn.Module):
    """Batch norms behind a transpose, as in PointNet: the results lie in memory as their input does."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(6, 6) for _layer in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _layer in range(3))

    def forward(self, x):
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = x + norm(linear(x).transpose(1, 2)).relu().transpose(1, 2).reshape(x.shape)
        return mean_square(x.reshape(-1))


def points():
    return Iteration(Points(), (torch.randn(4, 24, 6),))


class Cast(nn.Module):
    """Norms under autocast: their statistics are float32 though what they norm is not."""

    def __init__(self, norm):
        super().__init__()
        parts = [nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3), norm(8), nn.ReLU(), nn.Flatten()]
        self.parts = nn.Sequential(*parts, nn.Linear(8 * 64, 3))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return mean_square(self.parts(x))


def cast(norm):
    return Iteration(Cast(norm), (torch.randn(2, 3, 12, 12),))


class Patches(nn.Module):
    """A convolution over the tokens of one image, as in SegFormer: a view has other strides than its fake."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)

    def forward(self, x):
        image = self.depthwise(self.before(x).transpose(1, 2).view(1, 4, 4, 4))
        return mean_square(self.after(nn.functional.gelu(image.flatten(2).transpose(1, 2))))


def patches():
    return Iteration(Patches(), (torch.randn(1, 16, 4),))


class Bands(nn.Module):
    """Parts of parts changed in place, as in Longformer: PyTorch's functional kernels copy far more."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(6, 6)

    def forward(self, x):
        x = self.before(x)
        made = x.new_zeros(x.shape)
        made[:, 2, 1:4] = x[:, 1, 2:5]
        made[:, 3, 2:] = x[:, 1, 2:].double()
        made[:, 5:, 3:] = x[:, :3, :3].exp()
        made[:, -1][:, 2:] = 2 * x[:, 0, 2:]
        made[0].diagonal().copy_(x[1, 0])
        return mean_square(made.exp())


def bands():
    return Iteration(Bands(), (torch.randn(4, 8, 6),))


class NormFirst(nn.Module):
    """Norms whose input needs no gradient: their kernels make none, their fakes say they do."""

    def __init__(self, norm, frozen=False, evaluated=False):
        super().__init__()
        self.before = nn.Conv2d(3, 3, 1).requires_grad_(False) if frozen else nn.Identity()
        self.norm, self.after = norm.eval() if evaluated else norm, nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return mean_square(self.after(self.norm(self.before(x)).relu()))


def norm_first(norm, **options):
    return Iteration(NormFirst(norm, **options), (torch.randn(4, 3, 8, 8),))


UNUSUAL = {
    "lstm": lstm,
    "lstm of two layers, batch first": lambda: lstm(num_layers=2, batch_first=True),
    "lstm in both directions, dropout": lambda: lstm(num_layers=2, dropout=0.4, bidirectional=True),
    "points": points,
    "bands": bands,
    "cast batch norm": lambda: cast(nn.BatchNorm2d),
    "cast group norm": lambda: cast(lambda channels: nn.GroupNorm(2, channels)),
}

NORMS_FIRST = {
    "batch norm first": lambda: norm_first(nn.BatchNorm2d(3)),
    "batch norm after frozen layers": lambda: norm_first(nn.BatchNorm2d(3), frozen=True),
    "evaluated batch norm first": lambda: norm_first(nn.BatchNorm2d(3), evaluated=True),
    "instance norm first": lambda: norm_first(nn.InstanceNorm2d(3, affine=True)),
}
"""The trace knows of these beforehand."""


def seeded(name):
    torch.manual_seed(0)
    return {**UNUSUAL, **NORMS_FIRST}[name]()
