"""transformers' Trainer with common settings and adapters: what it logs and learns is eager's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from memplan.updates.catalogue import is_planned

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
    "label smoothing": {"label_smoothing_factor": 0.1, "gradient_checkpointing": True},
    "auto_find_batch_size": {"auto_find_batch_size": True},
}
OPTIMIZERS = {
    "adafactor": "transformers",
    "adamw_8bit": "bitsandbytes",
    "paged_adamw_8bit": "bitsandbytes",
    "paged_adamw_32bit": "bitsandbytes",
    "lion_8bit": "bitsandbytes",
    "rmsprop_bnb_8bit": "bitsandbytes",
    "adamw_torch_8bit": "torchao",
    "adamw_torch_4bit": "torchao",
}
"""Of the Trainer's `optim=`, with the package that each needs."""
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


def trainer(folder: Path, adapter: str | None = None, *, hidden: int = 16, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
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


def assert_as_eager(
    folder: Path,
    adapter: str | None = None,
    *,
    steps: int = 4,
    plan: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Compare losses, norms, weights and the optimizer's states. Returns the planned optimizer.

    plan: options of the plan.
    """
    found: list[tuple[list[Any], Any]] = []
    for planned in (False, True):
        AcceleratorState._reset_state(True)
        made = trainer(folder, adapter, max_steps=steps, **more)
        if planned:
            memplan.optimize_trainer(
                made, budget="100%", solver="store-all", verify=False, cache=False, **plan or {}
            )
        torch.manual_seed(0)
        made.train()
        losses = [(row["loss"], row["grad_norm"]) for row in made.state.log_history if "loss" in row]
        found.append((losses, made))
    (expected, theirs), (losses, mine) = found
    assert losses == expected
    assert len(losses) == steps
    optimizers = [each.optimizer.optimizer for each in (theirs, mine)]
    for own, planned in zip(theirs.model.parameters(), mine.model.parameters(), strict=True):
        assert torch.equal(own, planned)
        rows = [
            parts_of(optimizer.state[each])
            for optimizer, each in zip(optimizers, (own, planned), strict=True)
        ]
        assert rows[0].keys() == rows[1].keys()
        assert all(torch.equal(rows[0][name], rows[1][name]) for name in rows[0])
    return optimizers[1]


def parts_of(row: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a state, of those that wrap others their parts."""
    found: dict[str, torch.Tensor] = {}
    for name, each in row.items():
        parts = each.__tensor_flatten__()[0] if hasattr(each, "__tensor_flatten__") else ()
        found |= {f"{name}.{part}": getattr(each, part) for part in parts}
        found |= {} if parts else {name: torch.as_tensor(each)}
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_trainer_with_settings_of_its_own_learns_as_eager(name: str, tmp_path: Path) -> None:
    assert_as_eager(tmp_path, **SETTINGS[name])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_the_trainer_learn_as_its_own_loop(name: str, tmp_path: Path) -> None:
    """Ten updates, clipped and accumulated as the Trainer does."""
    pytest.importorskip(OPTIMIZERS[name])
    accumulated = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}
    optimizer = assert_as_eager(
        tmp_path, hidden=64, steps=10, optim=name, gradient_checkpointing=True, **accumulated
    )
    assert is_planned(optimizer) == (OPTIMIZERS[name] != "torchao")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_trainer_of_an_adapter_learns_as_eager(adapter: str, tmp_path: Path) -> None:
    assert_as_eager(tmp_path, adapter)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adapter", ["LoRA", "DoRA", "IA3"])
@pytest.mark.parametrize("plan", [{"early_updates": True}, {"bucket_size": "1MB"}], ids=str)
@pytest.mark.parametrize("norm", [1.0, 0.01])
def test_updates_of_an_adapter_in_the_plan_are_the_trainers(
    adapter: str, plan: dict[str, Any], norm: float, tmp_path: Path
) -> None:
    assert_as_eager(tmp_path, adapter, plan=plan, max_grad_norm=norm, bf16=True)
