"""A LoRA of a FLUX-like diffusion transformer, on cached latents and text embeddings (needs diffusers, peft).

    plan profile examples/flux_lora.py --optimizer adamw -o flux_lora.yaml
    plan profile examples/flux_lora.py:nf4 --optimizer adamw -o flux_lora_nf4.yaml
    plan profile examples/flux_lora.py:full --estimate --gpu rtx4090 --optimizer adamw -o flux_lora.json.gz

The second has its frozen linear layers in 4 bits (needs bitsandbytes). The third is FLUX.1-dev at
1024 × 1024: 23.8 GB of frozen weights in bfloat16, never allocated here.
"""

import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig, get_peft_model
from torch import nn

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]


def velocity_loss(output, target):
    return nn.functional.mse_loss(output[0].float(), target.float())


def build(double=2, single=4, heads=2, side=8, words=12, text=64, pooled=32, batch=2, rank=4, nf4=False):
    """Return model, inputs, loss and target.

    double, single: blocks of each kind. side: latent patches along an edge. text, pooled: widths.
    """
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        num_layers=double,
        num_single_layers=single,
        num_attention_heads=heads,
        joint_attention_dim=text,
        pooled_projection_dim=pooled,
        guidance_embeds=True,
    ).to(torch.bfloat16)
    if nf4:
        from four_bits import in_4_bits

        model = in_4_bits(model)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=ATTENTION)
    model = get_peft_model(model, config, autocast_adapter_dtype=False).train()
    # Rectified flow: the model predicts noise - latents at a point between the two.
    latents = torch.randn(batch, side * side, 64, dtype=torch.bfloat16)
    noise, time = torch.randn_like(latents), torch.rand(batch, dtype=torch.bfloat16)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    inputs = {
        "hidden_states": torch.lerp(latents, noise, time[:, None, None]),
        "encoder_hidden_states": torch.randn(batch, words, text, dtype=torch.bfloat16),
        "pooled_projections": torch.randn(batch, pooled, dtype=torch.bfloat16),
        "timestep": time,
        "guidance": torch.ones(batch, dtype=torch.bfloat16),
        "img_ids": torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3),
        "txt_ids": torch.zeros(words, 3),
        "return_dict": False,
    }
    return model, inputs, velocity_loss, noise - latents


def full(batch=1, rank=16):
    """FLUX.1-dev's sizes."""
    return build(19, 38, 24, side=64, words=512, text=4096, pooled=768, batch=batch, rank=rank)


def nf4():
    """The small model with its frozen linear layers in 4 bits."""
    return build(nf4=True)
