"""The Trainer with batches of many lengths: bitwise as the Trainer's own, padded or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memplan
import pytest
import torch
from memplan.graphs.errors import InputError
from memplan.training.collators import collated_pads
from memplan.training.plans.buckets import Pad
from torch import Tensor, nn
from torch.nn import functional

AcceleratorState: Any = pytest.importorskip("accelerate.state").AcceleratorState
transformers: Any = pytest.importorskip("transformers")
tokenizers: Any = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.scripts, pytest.mark.filterwarnings("ignore")]

PAD, WORDS, TO = 3, 20, (8, 16)
PLAN: dict[str, Any] = {"budget": "2MB", "solver": "rotor", "verify": False, "cache": False}


@pytest.fixture(autouse=True)
def accelerate_as_new() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    AcceleratorState._reset_state(True)


def tokenizer(side: str = "right") -> Any:
    words = {f"w{number}": number for number in range(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=f"w{PAD}", mask_token="w4", padding_side=side
    )


def model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "causal":
        sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": WORDS, "n_positions": 32}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    if kind == "translation":
        sizes = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": WORDS}
        config = transformers.T5Config(**sizes, pad_token_id=PAD, decoder_start_token_id=PAD)
        return transformers.T5ForConditionalGeneration(config)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=WORDS, max_position_embeddings=32, pad_token_id=PAD)
    if kind == "tokens":
        return transformers.BertForTokenClassification(config)
    return transformers.BertForSequenceClassification(config)


def rows(kind: str, count: int) -> list[dict[str, Any]]:
    numbers = torch.Generator().manual_seed(1)
    made: list[dict[str, Any]] = []
    for number in range(count):
        length, other = torch.randint(3, 17, (2,), generator=numbers).tolist()
        words = torch.randint(5, WORDS, (length,), generator=numbers).tolist()
        row: dict[str, Any] = {"input_ids": words, "attention_mask": [1] * length}
        if kind == "texts":
            row["labels"] = number % 2
        elif kind == "tokens":
            row["labels"] = [word % 2 for word in words]
        elif kind == "translation":
            row["labels"] = torch.randint(5, WORDS, (other,), generator=numbers).tolist()
        made.append(row)
    return made


def collator(kind: str, module: nn.Module) -> Any:
    if kind == "causal":
        return transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    if kind == "translation":
        return transformers.DataCollatorForSeq2Seq(tokenizer(), module)
    if kind == "tokens":
        return transformers.DataCollatorForTokenClassification(tokenizer())
    return transformers.DataCollatorWithPadding(tokenizer())


def trained(
    folder: Path, kind: str, collate: Callable[[Any, nn.Module], Any], steps: int, **options: Any
) -> Any:
    """Train with 2 rows a step, 1 in the last of each epoch. options: of a plan, if any."""
    module = model(kind)
    settings = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        max_steps=steps,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    made = transformers.Trainer(
        module, settings, train_dataset=rows(kind, 15), data_collator=collate(kind, module)
    )
    planned = memplan.optimize_trainer(made, **(PLAN | options)) if options else None
    torch.manual_seed(0)
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    return losses, list(module.parameters()), planned


def assert_same(one: Any, other: Any) -> None:
    assert one[0]
    assert one[0] == other[0]
    assert all(torch.equal(own, theirs) for own, theirs in zip(one[1], other[1], strict=True))


def test_dynamic_padding_trains_thirty_steps_as_the_trainer(tmp_path: Path) -> None:
    own = trained(tmp_path, "texts", collator, 30, max_plans=2)
    assert len(own[2].step.plans) == 2
    assert_same(own, trained(tmp_path, "texts", collator, 30))


@pytest.mark.parametrize("kind", ["texts", "tokens", "causal", "translation"])
def test_lengths_alone_pad_as_the_collator_would(kind: str, tmp_path: Path) -> None:
    """Bitwise as the Trainer on the same, padded, batches."""

    def padding(kind: str, module: nn.Module) -> Any:
        own = collator(kind, module)

        def padded(name: str, tensor: Tensor) -> Tensor:
            if tensor.dim() < 2:
                return tensor
            more = next(to for to in TO if to >= tensor.shape[1]) - tensor.shape[1]
            value = {"labels": -100, "attention_mask": 0, "token_type_ids": 0}.get(name, PAD)
            return functional.pad(tensor, (0, more), value=value)

        return lambda features: {name: padded(name, tensor) for name, tensor in own(features).items()}

    own = trained(tmp_path, kind, collator, 10, pad_to_lengths=TO)
    assert_same(own, trained(tmp_path, kind, padding, 10))


def batch(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}


def maker(made: Any, **attributes: Any) -> Any:
    module = SimpleNamespace(config=SimpleNamespace(**attributes))
    return SimpleNamespace(data_collator=made, model=module, processing_class=None)


def test_names_of_preferences_have_lengths_of_their_own() -> None:
    given = batch(
        prompt_input_ids=(2, 5), prompt_attention_mask=(2, 5), chosen_input_ids=(2, 7), chosen_labels=(2, 7)
    )
    assert collated_pads(maker(SimpleNamespace(pad_token_id=9)), given) == {
        "prompt_input_ids": Pad(9, 1, "prompt_", left=True),
        "prompt_attention_mask": Pad(0, 1, "prompt_", left=True),
        "chosen_input_ids": Pad(9, 1, "chosen_"),
        "chosen_labels": Pad(-100, 1, "chosen_"),
    }


def test_the_side_and_the_ignored_label_are_the_collators() -> None:
    made = transformers.DataCollatorForTokenClassification(tokenizer("left"), label_pad_token_id=-7)
    pads = collated_pads(maker(made), batch(input_ids=(2, 5), labels=(2, 5)))
    assert pads == {"input_ids": Pad(PAD, 1, left=True), "labels": Pad(-7, 1, left=True)}


def test_labels_of_another_length_are_classes() -> None:
    made = transformers.DataCollatorWithPadding(tokenizer())
    assert collated_pads(maker(made), batch(input_ids=(2, 5), labels=(2, 3))).keys() == {"input_ids"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (batch(input_features=(2, 5)), "has no input_ids"),
        (
            batch(input_ids=(2, 5), bounding=(2, 5)),
            "makes bounding, whose padding is not known: give pad_val",
        ),
    ],
)
def test_what_is_not_known_is_asked_for(given: dict[str, Tensor], line: str) -> None:
    with pytest.raises(InputError, match=line):
        collated_pads(maker(SimpleNamespace(pad_token_id=9)), given)
    with pytest.raises(InputError, match="does not tell its padding token"):
        collated_pads(maker(SimpleNamespace()), given)
