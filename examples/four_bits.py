"""Frozen linear layers in 4 bits (needs bitsandbytes), as `BitsAndBytesConfig` makes of weights it loads."""

import bitsandbytes
import torch
from torch import nn


def in_4_bits(module, keep=(), dtype=torch.bfloat16):
    """Replace the linear layers of a module by frozen ones in NF4 with nested scales; return the module.

    keep: parts of names of modules that are left as they are. dtype: that the layers compute in.
    """
    for name, part in list(module.named_children()):
        if any(text in name for text in keep):
            continue
        if type(part) is not nn.Linear:
            in_4_bits(part, keep, dtype)
            continue
        layer = bitsandbytes.nn.Linear4bit(
            part.in_features,
            part.out_features,
            bias=part.bias is not None,
            compute_dtype=dtype,
            compress_statistics=True,
            quant_type="nf4",
        )
        layer.weight = bitsandbytes.nn.Params4bit(part.weight.data, quant_type="nf4", module=layer)
        layer.bias = part.bias
        setattr(module, name, layer.requires_grad_(False).to(part.weight.device))
    return module
