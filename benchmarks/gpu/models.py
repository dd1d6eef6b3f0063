"""What is trained: those of `examples/`, as large as a GPU wants them, or small for the simulated device.
No weights are downloaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

EXAMPLES = str(Path(__file__).parents[2] / "examples")


def example(name: str, **sizes: int) -> Any:
    if EXAMPLES not in sys.path:
        sys.path.insert(0, EXAMPLES)
    return import_module(name).build(**sizes)


def llama3_8b() -> Any:
    """In bfloat16, weights and states, as it fits one card at best."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    }
    config = LlamaConfig(**sizes, use_cache=False, dtype=torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (1, 2048))
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).bfloat16()
    return model.train(), {"input_ids": tokens, "labels": tokens}


def llama_1b() -> Any:
    """In bfloat16, with grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        use_cache=False,
    )
    tokens = torch.randint(config.vocab_size, (4, 2048))
    return LlamaForCausalLM(config).bfloat16().train(), {"input_ids": tokens, "labels": tokens}


Build = Callable[[], Any]
LARGE: dict[str, Build] = {
    "gpt2": lambda: example("gpt2", layers=12, width=768, heads=12, vocabulary=50257, batch=8, length=1024),
    "llama-1b": llama_1b,
    "gpt2-xl": lambda: example("gpt2", layers=48, width=1600, heads=25, vocabulary=50257, length=1024),
    "llama3-8b": llama3_8b,
    "vit-l": lambda: example("vit", layers=24, width=1024, heads=16, side=224, patch=16, batch=64),
    "unet": lambda: example("unet", batch=8, side=512, width=64),
}
OPERATIONS = {
    "gpt2": 771,
    "llama-1b": 2200,
    "gpt2-xl": 3768,
    "llama3-8b": 4300,
    "vit-l": 1700,
    "unet": 500,
}
"""Operations of an iteration with updates: GPT-2's were counted, others' follow from layers."""
SMALL: dict[str, Build] = {
    "gpt2": lambda: example("gpt2", layers=2, width=64, heads=2, vocabulary=128, length=64),
    "llama-1b": lambda: example("llama", layers=2, width=64, heads=4, vocabulary=128, length=64),
    "gpt2-xl": lambda: example("gpt2", layers=4, width=64, heads=2, vocabulary=128, length=64),
    "llama3-8b": lambda: example("llama", layers=4, width=64, heads=4, vocabulary=128, length=64),
    "vit-l": lambda: example("vit", layers=4, width=64, heads=2, side=32, classes=10),
    "unet": lambda: example("unet", side=32, width=8, depth=3),
}
"""Of the same kinds."""
