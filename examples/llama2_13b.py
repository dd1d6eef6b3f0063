"""Llama 2 13B in bfloat16, batch 4, sequences of 512 tokens: 26 GB of weights.

plan profile examples/llama2_13b.py --estimate --gpu rtx3060 --optimizer adamw -o llama2_13b.json.gz
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(layers=40, batch=4, length=512):
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=5120,
        intermediate_size=13824,
        num_hidden_layers=layers,
        num_attention_heads=40,
        max_position_embeddings=4096,
        use_cache=False,
    )
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return model.train(), {"input_ids": tokens, "labels": tokens}
