"""Hugging Face's models on batches with and without padding, in turn: bitwise eager PyTorch's by default.

Their code chooses kernels by values: of attention masks, of position_ids that say where packed texts begin.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import memplan
import pytest
import torch
from torch import Generator, Tensor

pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWO_SIDES = {
    "d_model": 32,
    **{
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 64))
    },
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_start_token_id": 2,
}

Batch = dict[str, Tensor]


def text(generator: Generator, *, padded: bool) -> Batch:
    tokens = torch.randint(5, 128, (4, 16), generator=generator)
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, 8:], mask[1, -1] = 0, 0
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def packed(generator: Generator, *, padded: bool) -> Batch:
    """Texts one after the other in a row, with positions that begin anew, or one text a row."""
    tokens = torch.randint(5, 128, (2, 16), generator=generator)
    parts = ((6, 10), (9, 7)) if padded else ((16,), (16,))
    positions = torch.stack([torch.cat(list(map(torch.arange, part))) for part in parts])
    return {"input_ids": tokens, "position_ids": positions, "labels": tokens.clone()}


def answered(generator: Generator, *, padded: bool) -> Batch:
    given = text(generator, padded=padded)
    return {**given, "labels": given["labels"][:, :8].clone()}


def heard(generator: Generator, *, padded: bool) -> Batch:
    given = answered(generator, padded=padded)
    mask = torch.ones(4, 40, dtype=torch.int64)
    if padded:
        mask[0, 20:] = 0
    features = torch.randn(4, 8, 40, generator=generator)
    return {"input_features": features, "attention_mask": mask, "labels": given["labels"]}


def seen(generator: Generator, *, padded: bool) -> Batch:
    images = torch.randn(4, 3, 16, 16, generator=generator)
    drawn = torch.rand(4, 16, generator=generator) > 0.5
    return {"pixel_values": images, "bool_masked_pos": drawn if padded else torch.ones_like(drawn)}


def model(name: str, head: str, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{head}")(config).train()


def bert() -> Any:
    return model("Bert", "ForMaskedLM", **SIZES, **TOKENS)


def llama() -> Any:
    grouped = {"num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
    return model("Llama", "ForCausalLM", **SIZES, **TOKENS, **grouped)


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32}
    return model("GPT2", "LMHeadModel", **sizes, **TOKENS)


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return model("T5", "ForConditionalGeneration", **sizes, **TOKENS, decoder_start_token_id=0)


def bart() -> Any:
    return model("Bart", "ForConditionalGeneration", **TWO_SIDES, **TOKENS, max_position_embeddings=64)


def whisper() -> Any:
    sizes = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
    others = {"suppress_tokens": None, "begin_suppress_tokens": None}
    return model("Whisper", "ForConditionalGeneration", **TWO_SIDES, **TOKENS, **sizes, **others)


def vit() -> Any:
    return model("ViT", "ForMaskedImageModeling", **SIZES, image_size=16, patch_size=4, encoder_stride=4)


MODELS: dict[str, tuple[Callable[[], Any], Callable[..., Batch]]] = {
    "BERT": (bert, text),
    "Llama": (llama, text),
    "Llama, packed": (llama, packed),
    "GPT-2": (gpt2, text),
    "T5": (t5, answered),
    "BART": (bart, answered),
    "Whisper": (whisper, heard),
    "ViT": (vit, seen),
}


@pytest.mark.parametrize(
    "padded",
    [
        pytest.param(True, id="padded first"),
        pytest.param(False, id="whole first", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_batches_with_and_without_padding(name: str, padded: bool) -> None:
    make, batch = MODELS[name]
    own = make()
    eager, example = copy.deepcopy(own), batch(Generator().manual_seed(9), padded=padded)
    step = memplan.optimize(own, example, budget="100%", states=0, cache=False, progress=False)
    for turn in range(5):
        given = batch(Generator().manual_seed(turn), padded=padded == (turn % 2 == 0))
        losses: list[Tensor] = []
        for loss_of in (lambda given: eager(**given).loss, lambda given: step(**given)):
            torch.manual_seed(turn)
            losses.append(loss_of(given))
            losses[-1].backward()
        assert torch.equal(*losses), turn
        for (path, one), other in zip(eager.named_parameters(), own.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), path
            assert one.grad is None or torch.equal(one.grad, other.grad), f"{path}, step {turn}"
            one.grad = other.grad = None
