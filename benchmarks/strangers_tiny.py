"""Tiny configurations of transformers with random weights, for the lists of its models."""

from functools import partial
from typing import Any

import torch

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GROUPED: dict[str, Any] = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
IMAGE: dict[str, Any] = {**TINY, "image_size": 32, "patch_size": 8}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}


def configured(auto, kind, options, **others):
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**options, **others)
    return getattr(transformers, auto).from_config(config).train()


def tokens(*shape):
    return torch.randint(3, 64, shape)


def understood(kind, options):
    """Those of the options that the kind's configuration knows."""
    import transformers

    known = transformers.CONFIG_MAPPING[kind]()
    return {name: option for name, option in options.items() if hasattr(known, name)}


def made_by(recipe, kinds):
    return {kind: partial(recipe, kind) for kind in kinds.split()}
