"""A small BERT with its default dropout, in training on masked tokens; the sentences have unequal lengths."""

import torch
from transformers import BertConfig, BertForMaskedLM

IGNORED = -100


def build(layers=4, width=256, heads=4, vocabulary=2048, batch=4, length=128):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=length,
    )
    tokens = torch.randint(vocabulary, (batch, length))
    lengths = torch.linspace(length // 2, length, batch).long()
    attended = (torch.arange(length) < lengths[:, None]).long()
    predicted = (torch.rand(batch, length) < 0.15) & attended.bool()
    inputs = {
        "input_ids": tokens,
        "attention_mask": attended,
        "labels": torch.where(predicted, tokens, IGNORED),
    }
    return BertForMaskedLM(config).train(), inputs
