"""Small models for sharded training, as their libraries make them, without dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORDS, LENGTH, EACH = 101, 16, 4
LAYERS = ("GPT2Block", "LlamaDecoderLayer", "ViTLayer", "T5Block")

TITAN = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "use_cache": False,
    "max_position_embeddings": LENGTH,
}
"""torchtitan's Llama 3 `debugmodel` by transformers, with fewer words, and with heads that share keys."""


def make(kind: str) -> nn.Module:
    """Make a model from a fixed seed."""
    import transformers

    torch.manual_seed(0)
    hf: Any = transformers
    if kind == "gpt2":
        config = hf.GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=48,
            n_layer=3,
            n_head=4,
            use_cache=False,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
        return hf.GPT2LMHeadModel(config).train()
    if kind in ("llama", "lora"):
        config = hf.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=48,
            intermediate_size=90,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
            max_position_embeddings=LENGTH,
        )
        llama = hf.LlamaForCausalLM(config).train()
        return llama if kind == "llama" else _with_lora(llama)
    if kind == "titan":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**TITAN)).train()
    if kind == "vit":
        config = hf.ViTConfig(
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=90,
            image_size=16,
            patch_size=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=5,
        )
        return hf.ViTForImageClassification(config).train()
    config = hf.T5Config(
        vocab_size=WORDS,
        d_model=48,
        d_kv=12,
        d_ff=90,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config).train()


def _with_lora(module: nn.Module) -> nn.Module:
    import peft

    lora: Any = peft
    config = lora.LoraConfig(
        r=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    return lora.get_peft_model(module, config).train()


def batch(kind: str, rank: int, step: int) -> dict[str, Tensor]:
    """Make the batch of a rank in a step."""
    drawn = torch.Generator().manual_seed(100 + rank + 1000 * step)
    if kind == "vit":
        images = torch.randn(EACH, 3, 16, 16, generator=drawn)
        return {"pixel_values": images, "labels": torch.randint(5, (EACH,), generator=drawn)}
    words = torch.randint(1, WORDS, (EACH, LENGTH), generator=drawn)
    return {"input_ids": words, "labels": words.clone()}


def layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that FSDP2 takes as units."""
    return [part for part in module.modules() if type(part).__name__ in LAYERS]
