"""transformers' Trainer with common settings and adapters: what it logs and learns is eager's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch

AcceleratorState: Any = pytest.importorskip("accelerate.state").AcceleratorState
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")
pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

SETTINGS: dict[str, dict[str, Any]] = {
    "checkpoints, bf16": {"gradient_checkpointing": True, "bf16": True},
    "checkpoints, bf16, accumulating": {
        "gradient_checkpointing": True,
        "bf16": True,
        "gradient_accumulation_steps": 2,
    },
    "adafactor": {"optim": "adafactor", "gradient_checkpointing": True},
    "label smoothing": {"label_smoothing_factor": 0.1, "gradient_checkpointing": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
}
ADAPTERS: dict[str, Any] = {
    "LoRA": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_dropout=0.1, target_modules="all-linear"
    ),
    "DoRA": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, use_dora=True, target_modules="all-linear"),
    "IA3": lambda: peft.IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    "prompt tuning": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix tuning": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


@pytest.fixture(autouse=True)
def accelerate_as_new() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    AcceleratorState._reset_state(True)


def trainer(folder: Path, adapter: str | None = None, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, **sizes))
    if adapter is not None:
        model = peft.get_peft_model(model, ADAPTERS[adapter]())
    words = torch.randint(20, (12, 8), generator=torch.Generator().manual_seed(1))
    options = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **more,
    }
    settings = transformers.TrainingArguments(str(folder), **options)
    return transformers.Trainer(
        model, settings, train_dataset=[{"input_ids": row, "labels": row} for row in words]
    )


def assert_as_eager(folder: Path, adapter: str | None = None, **more: Any) -> None:
    found: list[tuple[list[float], dict[str, torch.Tensor]]] = []
    for planned in (False, True):
        AcceleratorState._reset_state(True)
        made = trainer(folder, adapter, **more)
        if planned:
            memplan.optimize_trainer(made, budget="100%", solver="store-all", verify=False, cache=False)
        torch.manual_seed(0)
        made.train()
        losses = [row["loss"] for row in made.state.log_history if "loss" in row]
        found.append((losses, dict(made.model.named_parameters())))
    (expected, theirs), (losses, mine) = found
    assert losses == expected
    assert len(losses) == 4
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_trainer_with_settings_of_its_own_learns_as_eager(name: str, tmp_path: Path) -> None:
    assert_as_eager(tmp_path, **SETTINGS[name])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_trainer_of_an_adapter_learns_as_eager(adapter: str, tmp_path: Path) -> None:
    assert_as_eager(tmp_path, adapter)
