"""A GAN: both networks planned, called in one graph of autograd. `python examples/train_gan.py`"""

from __future__ import annotations

from typing import Any

import memplan
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as entropy


def networks() -> tuple[nn.Module, nn.Module]:
    """Return the generator and the discriminator, small ones of DCGAN's form."""
    torch.manual_seed(0)
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(8, 32, 4), nn.BatchNorm2d(32), nn.ReLU(inplace=True)),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        *(nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()),
    )
    discriminator = nn.Sequential(
        *(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)),
        *(nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True)),
        nn.Conv2d(32, 1, 4),
    )
    return generator, discriminator


def train(planned: bool, batches: int = 4) -> tuple[nn.Module, list[float]]:
    """Return both networks, and the losses: the discriminator's and the generator's of each batch."""
    g, d = networks()
    of_g, of_d = (torch.optim.Adam(each.parameters(), lr=2e-3, betas=(0.5, 0.999)) for each in (g, d))
    numbers = torch.Generator().manual_seed(1)
    pictures = [torch.randn(8, 3, 16, 16, generator=numbers) for _ in range(batches)]
    generator: Any = g
    discriminator: Any = d
    if planned:  # two lines: the networks are called as before
        generator = memplan.optimize_module(g, torch.zeros(8, 8, 1, 1), budget="100%", solver="rotor")
        # Two calls wait for backward at once, real and fake; the generator's step wants the input's gradient.
        example = torch.zeros(8, 3, 16, 16, requires_grad=True)
        discriminator = memplan.optimize_module(d, example, budget="100%", calls=2, solver="rotor")

    torch.manual_seed(2)
    losses: list[float] = []
    for real in pictures:
        ones, zeros = torch.ones(len(real), 1, 1, 1), torch.zeros(len(real), 1, 1, 1)
        fake = generator(torch.randn(len(real), 8, 1, 1))
        of_d.zero_grad()
        loss = entropy(discriminator(real), ones) + entropy(discriminator(fake.detach()), zeros)
        loss.backward()
        of_d.step()
        of_g.zero_grad()
        fooled = entropy(discriminator(fake), ones)  # through the discriminator into the generator
        fooled.backward()
        of_g.step()
        losses += [loss.item(), fooled.item()]
    return nn.ModuleList([g, d]), losses


if __name__ == "__main__":
    print(train(True)[1])
