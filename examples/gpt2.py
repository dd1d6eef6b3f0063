"""A small GPT-2 with its default dropout, in training: the model of `make demo`.

`build` has a vocabulary so small that the activations, not the logits, make the peak.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build(layers=6, width=384, heads=6, vocabulary=2048, batch=4, length=256):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}


def vocabulary():
    """Two layers before 32,000 words: the logits make the peak."""
    return build(layers=2, width=128, heads=4, vocabulary=32000, batch=2, length=128)
