"""Train a DCGAN: the discriminator on real and fake images, the generator through the discriminator."""

import torch
import memplan  # memplan
from torch import nn

torch.manual_seed(0)
netG = nn.Sequential(
    nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
    nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
)  # fmt: skip
model = nn.ModuleList([netG, netD])
generate, judge = netG, netD
generate = memplan.optimize_module(netG, torch.zeros(8, 8, 1, 1), budget=BUDGET)  # memplan
judge = memplan.optimize_module(netD, torch.zeros(8, 3, 16, 16, requires_grad=True), budget=BUDGET)  # memplan
criterion, losses = nn.BCELoss(), []
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for _ in range(4):
    real, noise = torch.randn(8, 3, 16, 16), torch.randn(8, 8, 1, 1)
    netD.zero_grad()
    errD_real = criterion(judge(real), torch.ones(8))
    errD_real.backward()
    fake = generate(noise)
    errD_fake = criterion(judge(fake.detach()), torch.zeros(8))
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(judge(fake), torch.ones(8))
    errG.backward()
    optimizerG.step()
    losses += [errD_real.item(), errD_fake.item(), errG.item()]
