"""`torch.nn.Transformer` as it comes: encoder, decoder, causal mask, dropout 0.1."""

import torch
from torch import nn


def build(layers=3, width=256, heads=4, batch=4, length=128):
    torch.manual_seed(0)
    model = nn.Transformer(width, heads, layers, layers, 4 * width, batch_first=True)
    inputs = {
        "src": torch.randn(batch, length, width),
        "tgt": torch.randn(batch, length, width),
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(length),
        "tgt_is_causal": True,
    }
    wanted = torch.randn(batch, length, width)
    return model, inputs, nn.functional.mse_loss, wanted
