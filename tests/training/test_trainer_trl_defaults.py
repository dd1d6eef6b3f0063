"""TRL's trainers with their defaults by the one line: what they log and learn is eager's, bit by bit.

Their defaults are activation checkpointing, autocast to bfloat16 and losses in chunks. Lengths, steps and
`use_cpu` alone are set.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch

AcceleratorState: Any = pytest.importorskip("accelerate.state").AcceleratorState
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")
trl: Any = pytest.importorskip("trl")
datasets: Any = pytest.importorskip("datasets")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

WORDS = ("red", "green", "blue", "one", "two", "three", "up", "down", "left", "right")
OF_CLOCKS = ("runtime", "per_second", "step_time", "total_flos")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
COMMON: dict[str, Any] = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {**SIZES, "max_position_embeddings": 64},
    "Qwen3": {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64},
    "Gemma3Text": {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}
CLASSES = {
    "Llama": ("LlamaForCausalLM", "LlamaForSequenceClassification"),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
    "Gemma3Text": ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
    "GPT2": ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
}


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


def model(kind: str, folder: Path, *, scores: bool = False) -> Any:
    """Make a model and load it from a folder, where some trainers look for their reference."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **COMMON, **MODELS[kind], **({"num_labels": 1} if scores else {})
    )
    place = folder / f"model{scores}"
    getattr(transformers, CLASSES[kind][scores])(config).save_pretrained(place)
    tokenizer().save_pretrained(place)
    return getattr(transformers, CLASSES[kind][scores]).from_pretrained(place)


def texts(count: int, *lengths: int) -> list[str]:
    """Return texts of random words. lengths: of one text after the other, in turn."""
    picks = torch.randint(len(WORDS), (count, max(lengths)), generator=torch.Generator().manual_seed(1))
    rows = (row[: lengths[number % len(lengths)]] for number, row in enumerate(picks.tolist()))
    return [" ".join(WORDS[pick] for pick in row) for row in rows]


def rows(kind: str) -> list[dict[str, Any]]:
    """Return data whose batches have two lengths."""
    prompts, chosen, rejected = texts(12, 3), texts(12, 4, 2), texts(12, 5, 4)[::-1]
    triples = list(zip(prompts, chosen, rejected, strict=True))
    if kind == "SFT":
        return [{"text": text} for text in texts(12, 6, 9, 4, 6, 5, 5)]
    if kind == "DPO":
        return [{"prompt": p, "chosen": f" {c}", "rejected": f" {r}"} for p, c, r in triples]
    if kind == "KTO":
        return [{"prompt": p, "completion": f" {c}", "label": c < r} for p, c, r in triples]
    if kind == "Reward":
        return [{"chosen": c, "rejected": r} for _p, c, r in triples]
    return [{"prompt": prompt} for prompt in prompts]


def different_words(completions: list[str], **_others: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


def trainer(kind: str, of: str, folder: Path, *, lora: bool, **more: Any) -> Any:
    options = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **(
            {"num_generations": 2, "max_completion_length": 6}
            if kind in ("GRPO", "RLOO")
            else {"max_length": 24}
        ),
        **more,
    }
    settings = getattr(trl, f"{kind}Config")(**options)
    adapter = peft.LoraConfig(r=2, lora_dropout=0.1, target_modules="all-linear") if lora else None
    rewards = {"reward_funcs": different_words} if kind in ("GRPO", "RLOO") else {}
    return getattr(trl, f"{kind}Trainer")(
        model=model(of, folder, scores=kind == "Reward"),
        args=settings,
        processing_class=tokenizer(),
        train_dataset=datasets.Dataset.from_list(rows(kind)),
        peft_config=adapter,
        **rewards,
    )


def trained(made: Any) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return what the trainer has logged, without times, and the weights."""
    torch.manual_seed(0)
    made.train()
    logged = [
        {key: value for key, value in row.items() if not any(name in key for name in OF_CLOCKS)}
        for row in made.state.log_history
    ]
    return logged, dict(made.model.named_parameters())


CASES = [
    *product(("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO"), MODELS, (False, True), ((),)),
    *product(("SFT",), MODELS, (False, True), (("packing",),)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "of", "lora", "switches"), CASES)
def test_a_trainer_with_its_defaults_logs_and_learns_as_eager(
    kind: str, of: str, lora: bool, switches: tuple[str, ...], tmp_path: Path
) -> None:
    more = dict.fromkeys(switches, True)
    logged, weights = trained(trainer(kind, of, tmp_path, lora=lora, **more))
    AcceleratorState._reset_state(True)
    planned = trainer(kind, of, tmp_path, lora=lora, **more)
    memplan.optimize_trainer(planned, budget="100%", solver="rotor", verify=False, cache=False)
    found, mine = trained(planned)
    assert repr(found) == repr(logged)
    assert len(logged) == 5
    assert mine.keys() == weights.keys()
    assert all(torch.equal(mine[name], weights[name]) for name in weights)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "plan", "lora"),
    [
        *product(("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO"), ({"early_updates": True},), (False, True)),
        *product(("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO"), ({"bucket_size": "1MB"},), (True,)),
    ],
    ids=str,
)
def test_updates_in_the_plan_are_those_of_its_defaults(
    kind: str, plan: dict[str, Any], lora: bool, tmp_path: Path
) -> None:
    """Updates of adapters are of two batches; those of all weights are rolled back."""
    more = {"gradient_accumulation_steps": 2} if lora else {"max_grad_norm": 1e-3}
    logged, weights = trained(trainer(kind, "Llama", tmp_path, lora=lora, **more))
    AcceleratorState._reset_state(True)
    planned = trainer(kind, "Llama", tmp_path, lora=lora, **more)
    memplan.optimize_trainer(planned, budget="150%", solver="rotor", verify=False, cache=False, **plan)
    found, mine = trained(planned)
    assert repr(found) == repr(logged)
    assert all(torch.equal(mine[name], weights[name]) for name in weights)


TO = (16, 32)


def pad_batches(made: Any) -> None:
    """Have the trainer's loss pad each batch: prompts on the left, all else on the right."""
    own = made.compute_loss

    def padded(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            return value
        more = next(to for to in TO if to >= value.shape[1]) - value.shape[1]
        sides = (more, 0) if name.startswith("prompt_") else (0, more)
        return torch.nn.functional.pad(value, sides, value=-100 if name == "labels" else 0)

    def compute_loss(model: Any, inputs: dict[str, Any], *rest: Any, **more: Any) -> Any:
        return own(model, {name: padded(name, value) for name, value in inputs.items()}, *rest, **more)

    made.compute_loss = compute_loss


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "side"),
    [
        *product(("SFT", "DPO", "KTO", "Reward", "GRPO", "RLOO"), ("right",)),
        *product(("SFT", "GRPO"), ("left",)),
    ],
)
def test_lengths_alone_pad_as_the_trainers_collator_would(kind: str, side: str, tmp_path: Path) -> None:
    """Bitwise as the trainer on padded batches, whatever the side of the tokenizer."""
    eager, planned = (trainer(kind, "Llama", tmp_path, lora=False) for _ in range(2))
    for each in (eager, planned):
        each.processing_class.padding_side = side
    pad_batches(eager)
    memplan.optimize_trainer(planned, budget="100%", solver="store-all", cache=False, pad_to_lengths=TO)
    (logged, weights), (found, mine) = trained(eager), trained(planned)
    assert repr(found) == repr(logged)
    assert all(torch.equal(mine[name], weights[name]) for name in weights)


@pytest.mark.parametrize("kind", ["SFT", "GRPO"])
def test_padding_that_the_model_or_the_collator_does_not_leave_out_is_refused(
    kind: str, tmp_path: Path
) -> None:
    """Packed texts have positions, which also are those of prompts that are padded on the left in GPT-2."""
    made = trainer(kind, "GPT2", tmp_path, lora=False, **({"packing": True} if kind == "SFT" else {}))
    memplan.optimize_trainer(made, budget="100%", solver="store-all", cache=False, pad_to_lengths=TO)
    line = "packs texts into one row with position_ids.*: leave pad_to_lengths out"
    with pytest.raises(memplan.MemplanError, match=line if kind == "SFT" else "padding is not ignored"):
        made.train()
