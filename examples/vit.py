"""A small vision transformer for image classification."""

import torch
from transformers import ViTConfig, ViTForImageClassification


def build(layers=6, width=192, heads=3, side=96, patch=8, classes=100, batch=8):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=side,
        patch_size=patch,
        num_labels=classes,
    )
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(classes, (batch,))
    return ViTForImageClassification(config).train(), {"pixel_values": images, "labels": labels}
