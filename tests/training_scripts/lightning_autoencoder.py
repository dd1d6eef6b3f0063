"""Train Lightning's autoencoder by automatic optimization, with a logged loss and validation."""

import lightning
import torch
import torch.nn.functional as F
import memplan  # memplan
from torch import nn
from torch.utils.data import DataLoader


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64))
        self.seen = []

    @memplan.optimize(budget=BUDGET)  # memplan
    def training_step(self, batch, batch_idx):
        x = batch.view(batch.size(0), -1)
        return F.mse_loss(self.decoder(self.encoder(x)), x)

    def validation_step(self, batch, batch_idx):
        x = batch.view(batch.size(0), -1)
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(outputs["loss"].item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(7)
model, images = LitAutoEncoder(), torch.randn(22, 1, 8, 8)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=FOLDER,
)  # fmt: skip
trainer.fit(model, DataLoader(images, 8, shuffle=True), DataLoader(images, 8))
losses = model.seen
