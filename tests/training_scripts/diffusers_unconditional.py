"""Train an unconditional diffusion U-Net with accelerate and a moving average, as in diffusers' example."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=8, attention_head_dim=8,
)  # fmt: skip
ema_model = EMAModel(model.parameters(), decay=0.99, model_cls=UNet2DModel, model_config=model.config)
noise_scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def loss_of(model, noisy_images, timesteps, noise):
    return F.mse_loss(model(noisy_images, timesteps).sample.float(), noise.float())


model.train()
for _ in range(4):
    clean_images = torch.randn(2, 3, 8, 8)
    noise = torch.randn(clean_images.shape)
    timesteps = torch.randint(0, 100, (2,)).long()
    noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
    with accelerator.accumulate(model):
        loss = loss_of(model, noisy_images, timesteps, noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    ema_model.step(model.parameters())
    losses.append(loss.detach().item())
