"""A small T5, encoder and decoder with tied embeddings and its default dropout."""

import torch
from transformers import T5Config, T5ForConditionalGeneration


def build(layers=3, width=256, heads=4, vocabulary=2048, batch=4, length=96):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=heads,
        decoder_start_token_id=0,
        use_cache=False,
    )
    inputs = {
        "input_ids": torch.randint(vocabulary, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
        "labels": torch.randint(vocabulary, (batch, length // 2)),
    }
    return T5ForConditionalGeneration(config).train(), inputs
