"""Train a GAN by Lightning's manual optimization: two optimizers, losses of the discriminator added."""

import lightning
import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn
from torch.utils.data import DataLoader


class GAN(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.seen = []

    def on_train_start(self):
        self.judge = self.discriminator.__call__
        example = torch.zeros(8, 16, requires_grad=True)  # memplan
        self.judge = memplan.optimize_module(self.discriminator, example, budget=BUDGET, calls=2)  # memplan

    def adversarial_loss(self, scores, truth):
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, truth))

    def training_step(self, batch, batch_idx):
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(batch), 6)
        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.judge(self.generator(z)), 1.0)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.judge(batch), 1.0)
        fake_loss = self.adversarial_loss(self.judge(self.generator(z).detach()), 0.0)
        d_loss = (real_loss + fake_loss) / 2
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)
        self.seen += [g_loss.item(), d_loss.item()]

    def configure_optimizers(self):
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=1e-3) for part in parts], []


lightning.seed_everything(3)
model = GAN()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=FOLDER,
)  # fmt: skip
trainer.fit(model, DataLoader(torch.randn(24, 16), 8, shuffle=True))
losses = model.seen
