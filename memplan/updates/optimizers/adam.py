"""Adam, by the operations of `torch.optim.Adam` or its fused kernel: AdamW with its decay in the gradient.

Reference: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, arXiv:1412.6980.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from . import adamw

OPTIMIZER = replace(adamw.OPTIMIZER, title="Adam", make=torch.optim.Adam)
