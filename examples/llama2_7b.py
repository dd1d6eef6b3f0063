"""Llama 2 7B in bfloat16, batch 4, sequences of 512 tokens: too large for most machines.

    plan profile examples/llama2_7b.py --estimate --gpu A100 -o llama2_7b.json.gz

plans it without ever allocating its 13.5 GB of weights.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(layers=32, batch=4, length=512):
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
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return model.train(), {"input_ids": tokens, "labels": tokens}
