"""TRL's trainers within a budget by the one line: weights, losses and logs are theirs, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch

AcceleratorState: Any = pytest.importorskip("accelerate.state").AcceleratorState
transformers: Any = pytest.importorskip("transformers")
trl: Any = pytest.importorskip("trl")
datasets: Any = pytest.importorskip("datasets")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

PLAN: dict[str, Any] = {"budget": "100%", "solver": "rotor", "verify": False}
WORDS = ("red", "green", "blue", "one", "two", "three", "up", "down", "left", "right")
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 64}
OF_CLOCKS = ("runtime", "per_second", "step_time", "total_flos")


@pytest.fixture(autouse=True)
def accelerate_as_new() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    AcceleratorState._reset_state(True)


def tokenizer() -> Any:
    vocabulary = {word: number for number, word in enumerate(("<pad>", "<end>", "<unknown>", *WORDS))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def model(kind: str = "GPT2LMHeadModel", **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=16, pad_token_id=0, bos_token_id=1, eos_token_id=1, **SIZES, **options
    )
    return getattr(transformers, kind)(config)


def texts(count: int, words: int = 6) -> list[str]:
    picks = torch.randint(len(WORDS), (count, words), generator=torch.Generator().manual_seed(1))
    return [" ".join(WORDS[pick] for pick in row) for row in picks.tolist()]


def data(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "train_dataset": datasets.Dataset.from_list(rows),
        "eval_dataset": datasets.Dataset.from_list(rows[:4]),
    }


def options(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": 10,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **more,
    }


def sft(folder: Path, **more: Any) -> Any:
    rows = [{"text": text} for text in texts(24)]
    settings = trl.SFTConfig(**options(folder, **more))
    return trl.SFTTrainer(model(), settings, processing_class=tokenizer(), **data(rows))


def preferences(count: int) -> list[dict[str, Any]]:
    prompts, chosen, rejected = texts(count, 3), texts(count, 4), texts(count, 4)[::-1]
    return [
        {"prompt": prompt, "chosen": f" {one}", "rejected": f" {other}"}
        for prompt, one, other in zip(prompts, chosen, rejected, strict=True)
    ]


def dpo(folder: Path, *, reference: bool = True, **more: Any) -> Any:
    settings = trl.DPOConfig(**options(folder, **more))
    ref_model = model(attn_pdrop=0.0) if reference else None
    return trl.DPOTrainer(model(), ref_model, settings, processing_class=tokenizer(), **data(preferences(24)))


def reward(folder: Path, **more: Any) -> Any:
    rows = [{"chosen": each["chosen"], "rejected": each["rejected"]} for each in preferences(24)]
    settings = trl.RewardConfig(**options(folder, **more))
    judge = model("GPT2ForSequenceClassification", num_labels=1)
    return trl.RewardTrainer(judge, settings, processing_class=tokenizer(), **data(rows))


def _longer(completions: list[str], **_others: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


def grpo(folder: Path, **more: Any) -> Any:
    rows = [{"prompt": text} for text in texts(16, 4)]
    lengths = {"max_completion_length": 6, "generation_kwargs": {"min_new_tokens": 6}}
    settings = trl.GRPOConfig(**options(folder, num_generations=2, **lengths, **more))
    model().save_pretrained(folder / "model")  # the reference is loaded from there
    policy = transformers.GPT2LMHeadModel.from_pretrained(folder / "model")
    return trl.GRPOTrainer(policy, _longer, settings, processing_class=tokenizer(), **data(rows))


def trained(trainer: Any) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
    """Return what the trainer has logged, without times, and the weights."""
    torch.manual_seed(0)
    trainer.train()
    rows = [
        {key: value for key, value in row.items() if not any(name in key for name in OF_CLOCKS)}
        for row in trainer.state.log_history
    ]
    return rows, list(trainer.model.parameters())


@pytest.mark.parametrize(
    ("made", "more"),
    [
        pytest.param(sft, {}, id="SFT"),
        pytest.param(sft, {"gradient_accumulation_steps": 2}, id="SFT, accumulating"),
        pytest.param(dpo, {}, id="DPO"),
        pytest.param(dpo, {"precompute_ref_log_probs": True}, id="DPO, references beforehand"),
        pytest.param(reward, {}, id="reward"),
        pytest.param(grpo, {}, id="GRPO"),
        pytest.param(grpo, {"beta": 0.1, "gradient_accumulation_steps": 2}, id="GRPO, accumulating"),
    ],
)
def test_a_planned_trainer_logs_and_learns_the_same(
    made: Callable[..., Any], more: dict[str, Any], tmp_path: Path
) -> None:
    logged, weights = trained(made(tmp_path, **more))
    AcceleratorState._reset_state(True)
    planned = made(tmp_path, **more)
    memplan.optimize_trainer(planned, **PLAN)
    found, mine = trained(planned)
    assert repr(found) == repr(logged)
    assert len(logged) > 10
    assert all(torch.equal(one, other) for one, other in zip(mine, weights, strict=True))


@pytest.mark.parametrize("made", [sft, dpo, reward])
def test_a_trainer_that_offloads_activations_is_planned_as_without(
    made: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for a GPU; without streams and pinned memory, which it has not."""
    monkeypatch.setattr(torch.cpu, "empty_cache", lambda: None, raising=False)
    offloading: Any = pytest.importorskip("trl.models.activation_offloading")
    ordinary = offloading.OffloadActivations.__init__
    entered = list[object]()

    def initialised(self: Any, **given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
            patched.setattr(torch, "get_device_module", lambda _device: torch.cpu)
            ordinary(self, **given | {"use_pin_memory": False, "use_streams": False})
        entered.append(self)

    monkeypatch.setattr(offloading.OffloadActivations, "__init__", initialised)
    logged, weights = trained(made(tmp_path, activation_offloading=True))
    AcceleratorState._reset_state(True)
    planned = made(tmp_path, activation_offloading=True)
    compared: dict[str, Any] = {**PLAN, "verify": True}
    memplan.optimize_trainer(planned, **compared)
    found, mine = trained(planned)
    assert len(entered) == 2
    assert repr(found) == repr(logged)
    assert all(torch.equal(one, other) for one, other in zip(mine, weights, strict=True))
