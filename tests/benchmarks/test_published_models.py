"""Modules of published rows (benchmarks/published_models.py): adapters, masters, losses, norms."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import yaml
from published import ROWS
from published_models import model_of

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {
    "library": "transformers",
    "class": "LlamaForCausalLM",
    "config": SIZES | {"vocab_size": 64, "tie_word_embeddings": True},
}


def row(**changes: Any) -> dict[str, Any]:
    common = {"model": LLAMA, "length": 8, "dtype": "bfloat16", "attention": "sdpa"}
    return {**yaml.safe_load(ROWS.read_text())["defaults"], **common, **changes}


@pytest.mark.scripts
@pytest.mark.parametrize("chunks", [None, 4])
@pytest.mark.parametrize("adapters", [None, 3])
def test_adapters_with_float32_masters_are_trained(adapters: int | None, chunks: int | None) -> None:
    if adapters is None:
        pytest.importorskip("peft")
    lora = {"r": 4, "targets": ["q_proj", "down_proj"], "adapters": adapters}
    module, inputs = model_of(row(lora=lora, masters="float32", chunks=chunks), 2)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    module(**inputs)["loss"].backward()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)
    assert sum(parameter.numel() for parameter in trained) == 2 * 4 * (adapters or 1) * (64 + 96)


def test_the_loss_of_logits_in_float32() -> None:
    torch.manual_seed(0)
    module, inputs = model_of(row(logits="float32"), 2)
    found = module(**inputs)
    logits = module.model(input_ids=inputs["input_ids"]).logits
    assert (found["logits"].dtype, logits.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(found["logits"], logits.float())
    wanted = functional.cross_entropy(logits.float().flatten(0, 1), inputs["labels"].flatten())
    assert torch.equal(found["loss"], wanted)


@pytest.mark.parametrize(("words", "dtype"), [("own", torch.bfloat16), ("float32 shifted", torch.float32)])
def test_the_loss_of_logits_in_their_dtype_and_of_all_tokens_but_the_last(
    words: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    module, inputs = model_of(row(logits=words), 2)
    inputs["labels"] = torch.arange(16).reshape(2, 8)
    found = module(**inputs)
    assert (found["loss"].dtype, found["logits"].dtype) == (dtype, dtype)
    logits, labels = found["logits"], inputs["labels"]
    if "shifted" in words:
        logits, labels = logits[:, :-1], labels[:, 1:]
    wanted = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.equal(found["loss"], wanted)


def test_norms_of_separate_operators_have_the_values_of_layer_norms() -> None:
    config = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 8}
    model = {"library": "transformers", "class": "GPT2LMHeadModel", "config": config}
    found: list[torch.Tensor] = []
    for norms in (None, "by-hand"):
        torch.manual_seed(0)
        module, inputs = model_of(row(model=model, norms=norms, logits="own", dtype="float32"), 2)
        layer_norms = [part for part in module.modules() if isinstance(part, torch.nn.LayerNorm)]
        assert len(layer_norms) == (3 if norms is None else 0)
        found.append(module.eval()(**inputs)["logits"])
    assert torch.allclose(found[0], found[1], atol=1e-6)


def test_a_fused_loss_has_the_gradients_of_the_usual_one() -> None:
    torch.manual_seed(0)
    module, inputs = model_of(row(fused_loss=4, dtype="float32"), 2)
    fused = module(**inputs)["loss"]
    usual = functional.cross_entropy(
        module.whole(input_ids=inputs["input_ids"]).logits.flatten(0, 1), inputs["labels"].flatten()
    )
    assert fused.item() == pytest.approx(usual.item(), rel=1e-5)
    weights = list(module.parameters())
    pairs = zip(torch.autograd.grad(fused, weights), torch.autograd.grad(usual, weights), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)
