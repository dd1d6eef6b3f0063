"""Phi-2 in bfloat16, batch 4, sequences of 512 tokens: 5.6 GB of weights.

plan profile examples/phi2.py --estimate --gpu rtx3060 --optimizer adamw -o phi2.json.gz
"""

import torch
from transformers import PhiConfig, PhiForCausalLM


def build(layers=32, batch=4, length=512):
    config = PhiConfig(
        vocab_size=51200,
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=layers,
        num_attention_heads=32,
        partial_rotary_factor=0.4,
        max_position_embeddings=2048,
        resid_pdrop=0.1,
        use_cache=False,
    )
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    model = PhiForCausalLM(config).to(torch.bfloat16)
    return model.train(), {"input_ids": tokens, "labels": tokens}
