"""Setup of the examples of each page about training: a small GPT-2, a small classifier, what loops need."""

# ruff: noqa: F401 (pages use the imports; their blocks share these names)

import subprocess
import sys
from functools import partial
from typing import Any

import accelerate
import memplan
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrize
from torch.optim import AdamW
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

memplan.optimize = partial(memplan.optimize, time_limit=5)


def fresh() -> None:
    global model, batch, tokens, loader, optimizer, schedule, rows, arguments
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 256, "n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)).train()
    tokens = torch.randint(1, 256, (2, 32))
    batch = {"input_ids": tokens, "labels": tokens}
    loader = [batch] * 5
    rows = [{"input_ids": one, "labels": one} for one in tokens]
    quiet: dict[str, Any] = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments("out", max_steps=2, **quiet)
    optimizer = AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)


def words(number: int) -> None:
    """A model of so many tokens."""
    global model, optimizer
    sizes: dict[str, Any] = {"n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(vocab_size=number, **sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    optimizer = AdamW(model.parameters())


def pictures() -> None:
    global model, x, y, images, labels, loss_fn, loader, epochs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 10))
    x = images = torch.randn(4, 3, 4, 4)
    y = labels = torch.randint(10, (4,))
    loss_fn, loader, epochs = nn.functional.cross_entropy, [(images, labels)] * 2, 2
