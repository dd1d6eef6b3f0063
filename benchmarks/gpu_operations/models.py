"""Small models of the usual kinds, of two layers: attention with and without masks, groups and dropout,
convolutions, norms, upsampling, experts.

A builder takes the probability of dropout and returns a module in training mode and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Built = tuple[nn.Module, dict[str, Any]]

TOKENS, LENGTH, BATCH = 256, 64, 2

LAYERS = 2
"""Layers of a model; the table is of two."""


def _tokens(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.arange(batch * length).reshape(batch, length) % TOKENS


def _language(module: Any, **inputs: Tensor) -> Built:
    tokens = _tokens()
    return module.train(), {"input_ids": tokens, "labels": tokens, **inputs}


def _configured(kind: Any, **options: Any) -> Any:
    return kind(**options)


def gpt2(dropout: float) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _language(
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=TOKENS,
                n_positions=LENGTH,
                n_embd=128,
                n_layer=LAYERS,
                n_head=2,
                use_cache=False,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
            )
        )
    )


def gpt2_eager(dropout: float) -> Built:
    """Attention by products, as before PyTorch 2."""
    module, inputs = gpt2(dropout)
    made: Any = module
    made.set_attn_implementation("eager")
    return made, inputs


def llama(dropout: float, groups: int = 1) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _language(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=TOKENS,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=LAYERS,
                num_attention_heads=2,
                num_key_value_heads=groups,
                use_cache=False,
                attention_dropout=dropout,
            )
        )
    )


def llama_heads(dropout: float) -> Built:
    """Build a Llama with as many keys as queries."""
    return llama(dropout, groups=2)


def llama_padded(dropout: float) -> Built:
    """With a mask of padding."""
    module, inputs = llama(dropout)
    return module, {**inputs, "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)}


def mixtral(dropout: float) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=TOKENS,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        num_experts_per_tok=1,
        use_cache=False,
        attention_dropout=dropout,
    )
    return _language(MixtralForCausalLM(config))


def gemma(dropout: float) -> Built:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=TOKENS,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        use_cache=False,
        attention_dropout=dropout,
    )
    return _language(Gemma2ForCausalLM(config))


def bert(dropout: float) -> Built:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=TOKENS,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=256,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return _language(BertForMaskedLM(config), attention_mask=torch.ones(BATCH, LENGTH, dtype=torch.long))


def deberta(dropout: float) -> Built:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=TOKENS,
        hidden_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=128,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    module = DebertaV2ForSequenceClassification(config).train()
    return module, {"input_ids": _tokens(), "labels": torch.zeros(BATCH, dtype=torch.long)}


def t5(dropout: float) -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = _configured(
        T5Config,
        vocab_size=TOKENS,
        d_model=128,
        d_kv=64,
        d_ff=256,
        num_layers=LAYERS,
        num_heads=2,
        dropout_rate=dropout,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return _language(T5ForConditionalGeneration(config))


def vit(dropout: float) -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = _configured(
        ViTConfig,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=256,
        image_size=32,
        patch_size=8,
        num_labels=4,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return _images(ViTForImageClassification(config))


def _images(module: Any, size: int = 32) -> Built:
    return module.train(), {
        "pixel_values": torch.zeros(BATCH, 3, size, size),
        "labels": torch.zeros(BATCH, dtype=torch.long),
    }


def swin(dropout: float) -> Built:
    from transformers import SwinConfig, SwinForImageClassification

    config = _configured(
        SwinConfig,
        image_size=32,
        patch_size=4,
        embed_dim=32,
        depths=[LAYERS // 2, LAYERS // 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=4,
        drop_path_rate=0.0,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return _images(SwinForImageClassification(config))


def resnet(_dropout: float) -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = _configured(
        ResNetConfig,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[LAYERS // 2, LAYERS // 2],
        num_labels=4,
    )
    return _images(ResNetForImageClassification(config))


def resnet_channels_last(dropout: float) -> Built:
    module, inputs = resnet(dropout)
    inputs["pixel_values"] = inputs["pixel_values"].contiguous(memory_format=torch.channels_last)
    return module.to(memory_format=torch.channels_last), inputs  # pyright: ignore


def convnext(_dropout: float) -> Built:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = _configured(
        ConvNextConfig, hidden_sizes=[16, 32], depths=[LAYERS // 2, LAYERS // 2], num_stages=2, num_labels=4
    )
    return _images(ConvNextForImageClassification(config))


def whisper(dropout: float) -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=TOKENS,
        d_model=128,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        num_mel_bins=16,
        max_source_positions=LENGTH,
        max_target_positions=LENGTH,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
    )
    inputs = {"input_features": torch.zeros(BATCH, 16, 2 * LENGTH), "labels": _tokens(length=16)}
    return WhisperForConditionalGeneration(config).train(), inputs


def clip(dropout: float) -> Built:
    from transformers import CLIPConfig, CLIPModel

    part = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "attention_dropout": dropout,
    }
    config = CLIPConfig(
        text_config={**part, "vocab_size": TOKENS, "max_position_embeddings": LENGTH},
        vision_config={**part, "image_size": 32, "patch_size": 8},
        projection_dim=64,
    )
    tokens = _tokens()
    return CLIPModel(config).train(), {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.zeros(BATCH, 3, 32, 32),
        "return_loss": True,
    }


class _Loss(nn.Module):
    """A module with the sum of squares of what it returns as its loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.module(**inputs).float().square().mean()


def encoder(dropout: float) -> Built:
    """PyTorch's own."""
    layer = nn.TransformerEncoderLayer(128, 2, 256, dropout, batch_first=True)
    module = _Loss(nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False))
    return module.train(), {"src": torch.zeros(BATCH, LENGTH, 128)}


class _Block(nn.Module):
    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.attention_norm = nn.GroupNorm(8, channels)
        self.qkv, self.dropout = nn.Conv2d(channels, 3 * channels, 1), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.conv(F.silu(self.norm(x))))
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).reshape(batch, 3, 2, channels // 2, height * width)
        query, key, value = qkv.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + mixed.transpose(-1, -2).reshape(x.shape)


class _UNet(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
        self.down, self.middle = nn.Conv2d(32, 32, 3, stride=2, padding=1), _Block(32, dropout)
        self.outer, self.up = _Block(32, dropout), nn.ConvTranspose2d(32, 32, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(self.first(x))
        inner = F.interpolate(self.middle(self.down(x)), scale_factor=2.0, mode="nearest")
        inner = F.interpolate(F.max_pool2d(inner, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(torch.cat([x, inner + self.up(self.down(x))], 1))


def unet(dropout: float) -> Built:
    return _Loss(_UNet(dropout)).train(), {"x": torch.zeros(BATCH, 3, 16, 16)}


class _DiT(nn.Module):
    """Blocks of a diffusion transformer: norms without weights, scaled and shifted by a condition."""

    def __init__(self, dropout: float, width: int = 128) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout
        self.patches = nn.Conv2d(4, width, 2, stride=2)
        self.condition = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(LAYERS))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(LAYERS))
        self.query_norm, self.key_norm = nn.RMSNorm(64), nn.RMSNorm(64)
        self.hidden = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(LAYERS))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for condition, qkv, hidden, out in zip(self.condition, self.qkv, self.hidden, self.out, strict=True):
            shift, scale, gate, shift2, scale2, gate2 = condition(F.silu(time))[:, None].chunk(6, dim=-1)
            mixed = qkv(F.layer_norm(x, (self.width,)) * (1 + scale) + shift)
            query, key, value = (p.unflatten(-1, (2, 64)).transpose(1, 2) for p in mixed.chunk(3, -1))
            attended = F.scaled_dot_product_attention(
                self.query_norm(query), self.key_norm(key), value, dropout_p=self.dropout
            )
            x = x + gate * attended.transpose(1, 2).flatten(2)
            fed = F.layer_norm(x, (self.width,)) * (1 + scale2) + shift2
            x = x + gate2 * out(F.gelu(hidden(fed), approximate="tanh"))
        return x


def dit(dropout: float) -> Built:
    inputs = {"x": torch.zeros(BATCH, 4, 16, 16), "time": torch.zeros(BATCH, 128)}
    return _Loss(_DiT(dropout)).train(), inputs


class _Cells(nn.Module):
    """Recurrent cells, and what autocast has on its lists."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.cell, self.gru = nn.LSTMCell(32, 32), nn.GRUCell(32, 32)
        self.norm, self.instance = nn.BatchNorm1d(32), nn.InstanceNorm1d(32, affine=True)
        self.dropout, self.prelu = nn.Dropout(dropout), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden, cell = self.cell(x)
        hidden = self.gru(self.dropout(hidden), cell)
        mixed = self.instance(self.norm(self.prelu(hidden)).view(2, 32, -1).expand(2, 32, 4))
        chances = F.softmax(mixed, -1).cumsum(-1).pow(2).log1p() + mixed.exp()
        lengths = torch.linalg.vector_norm(mixed, dim=-1) + mixed.norm(dim=-1) + mixed.prod(-1)
        similar = F.cosine_similarity(mixed[0], mixed[1])
        return chances.mean((1, 2)).sum() + lengths.sum() + similar.sum() + F.smooth_l1_loss(mixed, mixed * 2)


def cells(dropout: float) -> Built:
    return _Loss(_Cells(dropout)).train(), {"x": torch.zeros(BATCH, 32)}


MODELS: dict[str, Callable[[float], Built]] = {
    "bert": bert,
    "cells": cells,
    "clip": clip,
    "convnext": convnext,
    "deberta": deberta,
    "dit": dit,
    "encoder": encoder,
    "gemma": gemma,
    "gpt2": gpt2,
    "gpt2-eager": gpt2_eager,
    "llama": llama,
    "llama-heads": llama_heads,
    "llama-padded": llama_padded,
    "mixtral": mixtral,
    "resnet": resnet,
    "resnet-channels-last": resnet_channels_last,
    "swin": swin,
    "t5": t5,
    "unet": unet,
    "vit": vit,
    "whisper": whisper,
}
