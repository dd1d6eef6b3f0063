"""Fine-tune a diffusion U-Net on images with captions by LoRA, as in the text-to-image example of diffusers."""

import torch
import torch.nn.functional as F
import memplan  # memplan
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=24, attention_head_dim=4, norm_num_groups=8,
)  # fmt: skip
unet.requires_grad_(False)
unet.add_adapter(LoraConfig(r=4, lora_alpha=4, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
lora_layers = [parameter for parameter in unet.parameters() if parameter.requires_grad]
noise_scheduler = DDPMScheduler(num_train_timesteps=100)
optimizer = torch.optim.AdamW(lora_layers, lr=1e-3)
unet, optimizer = accelerator.prepare(unet, optimizer)
unet.train()
losses = []


@memplan.optimize(budget=BUDGET)  # memplan
def denoising_loss(unet, noisy, timesteps, text, noise):
    return F.mse_loss(unet(noisy, timesteps, text, return_dict=False)[0].float(), noise.float())


for _step in range(6):
    latents, text = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 24)
    with accelerator.accumulate(unet):
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 100, (2,)).long()
        noisy = noise_scheduler.add_noise(latents, noise, timesteps)
        loss = denoising_loss(unet, noisy, timesteps, text, noise)
        losses.append(loss.item())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(lora_layers, 1.0)
        optimizer.step()
        optimizer.zero_grad()
model = unet
