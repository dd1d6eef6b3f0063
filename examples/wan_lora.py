"""A LoRA of a Wan-like video transformer, on cached latents and text embeddings (needs diffusers, peft).

    plan profile examples/wan_lora.py --optimizer adamw -o wan_lora.yaml
    plan profile examples/wan_lora.py:nf4 --optimizer adamw -o wan_lora_nf4.yaml
    plan profile examples/wan_lora.py:full --estimate --gpu rtx4090 --optimizer adamw -o wan_lora.json.gz

The second has its frozen linear layers in 4 bits (needs bitsandbytes). The third is Wan 2.1 14B with 17
frames of 480 × 832: 28.6 GB of frozen weights in bfloat16, never allocated here.
"""

import torch
from diffusers import WanTransformer3DModel
from peft import LoraConfig, get_peft_model
from torch import nn


def velocity_loss(output, target):
    return nn.functional.mse_loss(output[0].float(), target.float())


def build(
    blocks=3, heads=2, feed_forward=512, video=(3, 8, 12), words=12, text=64, batch=1, rank=4, nf4=False
):
    """Return model, inputs, loss and target.

    video: latent frames, rows and columns. text: width of its embeddings.
    """
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_layers=blocks, num_attention_heads=heads, ffn_dim=feed_forward, text_dim=text
    ).to(torch.bfloat16)
    if nf4:
        from four_bits import in_4_bits

        # Timesteps are converted to the dtype of the time embedder's weights: these stay, as in diffusers.
        model = in_4_bits(model, keep=model._keep_in_fp32_modules)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=["to_q", "to_k", "to_v", "to_out.0"])
    model = get_peft_model(model, config, autocast_adapter_dtype=False).train()
    # Rectified flow: the model predicts noise - latents at a point between the two.
    latents = torch.randn(batch, 16, *video, dtype=torch.bfloat16)
    noise, time = torch.randn_like(latents), torch.rand(batch, dtype=torch.bfloat16)
    inputs = {
        "hidden_states": torch.lerp(latents, noise, time[:, None, None, None, None]),
        "timestep": 1000 * time,
        "encoder_hidden_states": torch.randn(batch, words, text, dtype=torch.bfloat16),
        "return_dict": False,
    }
    return model, inputs, velocity_loss, noise - latents


def full(batch=1, rank=32):
    """Wan 2.1 14B's sizes."""
    return build(40, 40, 13824, (5, 60, 104), words=512, text=4096, batch=batch, rank=rank)


def nf4():
    """The small model with its frozen linear layers in 4 bits."""
    return build(nf4=True)
