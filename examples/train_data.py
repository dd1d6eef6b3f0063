"""A small GPT-2 and sentences of random words, for the training examples: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel


def small_gpt2(dropout: float = 0.1) -> GPT2LMHeadModel:
    """In train mode; the same weights each time."""
    torch.manual_seed(0)
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **drops)).train()


def sentences(count: int = 24) -> list[dict[str, Tensor]]:
    """Batches of them are what the model takes."""
    numbers = torch.Generator().manual_seed(1)
    words = torch.randint(50, (count, 16), generator=numbers)
    return [{"input_ids": each, "labels": each} for each in words]
