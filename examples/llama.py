"""A small Llama with grouped queries (half as many key and value heads as query heads)."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(layers=4, width=256, heads=8, vocabulary=2048, batch=4, length=128):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=length,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    return LlamaForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens}
