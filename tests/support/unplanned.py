"""Optimizers of PyTorch's as subclasses: a subclass may do anything, so it steps after the plan."""

from __future__ import annotations

import torch


class Adadelta(torch.optim.Adadelta):
    pass


class Adagrad(torch.optim.Adagrad):
    pass


class RAdam(torch.optim.RAdam):
    pass


class RMSprop(torch.optim.RMSprop):
    pass


class Adafactor(torch.optim.Adafactor):
    pass


class NAdam(torch.optim.NAdam):
    pass


class Muon(torch.optim.Muon):
    pass
