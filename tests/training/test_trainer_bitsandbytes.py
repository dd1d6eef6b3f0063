"""Models that transformers loads with a BitsAndBytesConfig, under peft's LoRA: planned, bit by bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("bitsandbytes")
peft: Any = pytest.importorskip("peft")
transformers: Any = pytest.importorskip("transformers")

pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "nf4": FOUR | {"bnb_4bit_compute_dtype": torch.float32},
    "nf4 in bfloat16": FOUR | {"bnb_4bit_compute_dtype": torch.bfloat16},
    "fp4 stored in bfloat16": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "fp4",
        "bnb_4bit_compute_dtype": torch.bfloat16,
        "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "8 bits": {"load_in_8bit": True},
}


def adapted(folder: Path, options: dict[str, Any], *, kind: str = "Llama", **lora: Any) -> Any:
    """A model saved in the folder, loaded in its quantised form, with adapters."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    config = getattr(transformers, f"{kind}Config")(num_attention_heads=4, num_key_value_heads=2, **sizes)
    made = transformers.AutoModelForCausalLM.from_config(config)
    in_half = torch.bfloat16 in options.values()
    made.to(torch.bfloat16 if in_half else torch.float32).save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=transformers.BitsAndBytesConfig(**options), device_map={"": "cpu"}
    )
    model = peft.prepare_model_for_kbit_training(model)  # with checkpoints around layers
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **lora))


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


# Qwen2 has biases, which are prepared in float32, and converted in the first forward.
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loaded_model_is_planned(tmp_path: Path, options: str, kind: str) -> None:
    model = adapted(tmp_path, OPTIONS[options], kind=kind).train()
    tokens = torch.randint(0, 128, (2, 16))
    batch = {"input_ids": tokens, "labels": tokens}
    baseline = copy.deepcopy(model)
    first, second = (torch.optim.AdamW(trained(each), lr=0.01) for each in (model, baseline))
    step = memplan.optimize(model, batch, optimizer=first, budget="100%", solver="store-all", cache=False)
    for _ in range(3):
        loss = baseline(**batch).loss
        loss.backward()
        second.step()
        second.zero_grad()
        assert torch.equal(step(batch), loss)
    assert all(torch.equal(a, b) for a, b in zip(trained(model), trained(baseline), strict=True))


def weights_after_training(folder: Path, options: dict[str, Any], *, planned: bool, **arguments: Any) -> Any:
    model = adapted(folder / "base", options, lora_dropout=0.05)
    tokens = torch.randint(0, 128, (8, 16), generator=torch.Generator().manual_seed(1))
    given = transformers.TrainingArguments(
        str(folder / "out"),
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    data: Any = [{"input_ids": each, "labels": each} for each in tokens]
    trainer = transformers.Trainer(model, given, train_dataset=data)
    if planned:
        memplan.optimize_trainer(trainer, budget="100%", solver="store-all", cache=False)
    trainer.train()
    losses = trainer.state.log_history[-1]["train_loss"]
    return losses, [parameter.detach().clone() for parameter in trained(model)]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ("nf4", {}),
        ("nf4 in bfloat16", {"bf16": True}),
        ("nf4", {"optim": "paged_adamw_8bit"}),
        ("nf4", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.3}),
        ("8 bits", {}),
    ],
)
def test_the_trainer_of_a_loaded_model_is_planned(
    tmp_path: Path, options: str, arguments: dict[str, Any]
) -> None:
    eager, planned = (
        weights_after_training(tmp_path, OPTIONS[options], planned=each, **arguments)
        for each in (False, True)
    )
    both: list[tuple[Tensor, Tensor]] = list(zip(eager[1], planned[1], strict=True))
    assert eager[0] == planned[0]
    assert all(torch.equal(a, b) for a, b in both)
