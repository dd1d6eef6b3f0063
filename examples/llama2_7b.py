"""Llama 2 7B, batch 4, sequences of 512 tokens: too large for most machines.

    plan profile examples/llama2_7b.py --estimate --gpu A100 -o llama2_7b.json.gz
    plan profile examples/llama2_7b.py:fp32 --estimate --gpu rtx3060 --optimizer adamw -o llama2_7b.json.gz

plans it without ever allocating its weights: 13.5 GB in bfloat16, 27 GB in float32 (`fp32`), which AdamW's
states triple.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(layers=32, batch=4, length=512, dtype=torch.bfloat16):
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=layers,
        num_attention_heads=32,
        max_position_embeddings=4096,
        use_cache=False,
    )
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    model = LlamaForCausalLM(config).to(dtype)
    return model.train(), {"input_ids": tokens, "labels": tokens}


def fp32(layers=32, batch=4, length=512):
    return build(layers, batch, length, torch.float32)
