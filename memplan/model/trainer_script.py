"""A training script of transformers' Trainer, run up to its `train()`: the model, a batch, the arguments.

The script runs as Python would run it, with models without weights (script_models.py), but for:

    TrainingArguments     noted, then without precision, optimizer, sharding and checkpointing, which memplan
                          counts by itself and which may need a GPU or packages that are not here
    Trainer.train()       ends the script

Afterwards every weight is on meta. `build` makes the model and its batch from that each time it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import ref

from torch import Tensor, nn

from ..graphs.errors import InputError
from ..graphs.folders.scratch import Scratch
from ..torch_support.torch_modules import MOVE_OF_TRAINER
from .file import DEFAULT_ENTRY, ModelFile, guarded, imports_from
from .processes import Around
from .script_models import (
    TrainingReached,
    moved,
    names_of_script,
    run_script,
    stay,
    with_rows,
    without_weights,
)

BATCHES = 8
"""Batches of the script's data, of which the largest counts."""
_NEUTRAL: Mapping[str, Any] = {
    **dict.fromkeys(("bf16", "fp16", "gradient_checkpointing", "activation_checkpointing"), False),
    **dict.fromkeys(("torch_compile", "push_to_hub", "dataloader_pin_memory"), False),
    **dict.fromkeys(("tf32", "fsdp", "fsdp_config", "deepspeed", "torch_compile_backend"), None),
    **dict.fromkeys(("torch_compile_mode", "dataloader_prefetch_factor"), None),
    "optim": "adamw_torch",
    "report_to": "none",
    "dataloader_num_workers": 0,
    "use_cpu": True,
}
"""Arguments with which a Trainer is made: of those of a version, the fields that it has."""


class TrainerScript(NamedTuple):
    """The training of a script of transformers' Trainer.

    kind: the trainer's class. arguments: of its TrainingArguments, as the script gave them.
    batch: shapes of its tensors.
    """

    file: ModelFile
    kind: str
    arguments: dict[str, Any]
    batch: dict[str, tuple[int, ...]]


def is_trainer_script(path: Path) -> bool:
    """Tell whether a file has no `build`, and calls `train()` of something whose name ends with Trainer."""
    names, attributes = names_of_script(path)
    return "train" in attributes and any(name.endswith("Trainer") for name in names | attributes)


def read_trainer_script(path: Path, words: Sequence[str] = ()) -> TrainerScript:
    """Run a script up to `Trainer.train()`. words: its command line. Raises InputError, one line."""
    reached = list[Any]()
    given: dict[int, dict[str, Any]] = {}
    with imports_from(path), Scratch("script") as folder, _prepared(reached, given, folder):
        guarded(path, "the script fails before it trains", lambda: run_script(path, words, reached))
        if not reached:
            raise InputError(
                f"{path}: ends without a call of Trainer.train(): what it trains is not known; write a "
                "function build() that returns model and example batch (docs/models.md)"
            )
        trainer = reached[0]
        batch = guarded(path, "its data fails", lambda: _largest(trainer.get_train_dataloader()))
    if not batch:
        raise InputError(f"{path}: its Trainer has no batch of tensors by name")
    arguments: dict[str, Any] = given.get(id(trainer.args)) or vars(trainer.args)
    file = ModelFile(str(path), DEFAULT_ENTRY, _builder(trainer, batch))
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    return TrainerScript(file, type(trainer).__name__, arguments, shapes)


@contextmanager
def _prepared(reached: list[Any], given: dict[int, dict[str, Any]], folder: str) -> Generator[None]:
    """Let the libraries do what this file's docstring says. folder: for output_dir."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise InputError("a script of transformers' Trainer needs the package transformers") from error
    trainer, arguments = transformers.Trainer, transformers.TrainingArguments
    own: Any = arguments.__post_init__

    def train(self: Any, *_arguments: Any, **_keywords: Any) -> None:
        reached.append(self)
        raise TrainingReached

    def noted(self: Any) -> None:
        given[id(self)] = dict(vars(self))
        for name, value in {**_NEUTRAL, "output_dir": folder}.items():
            if hasattr(self, name):
                setattr(self, name, value)
        own(self)

    with without_weights(), ExitStack() as patches:
        for where, name, new in (
            (trainer, "train", train),
            (trainer, MOVE_OF_TRAINER, stay),
            (arguments, "__post_init__", noted),
        ):
            if hasattr(where, name):
                patches.enter_context(patch.object(where, name, new))
        yield


def _largest(batches: Iterable[Any]) -> dict[str, Tensor]:
    """Return the tensors of the batch with the most elements, of the first few."""
    there = [
        {name: value.cpu() for name, value in dict(batch).items() if isinstance(value, Tensor)}
        for batch in islice(batches, BATCHES)
    ]
    return max(there, key=lambda batch: sum(tensor.numel() for tensor in batch.values()), default={})


def _builder(trainer: Any, example: dict[str, Tensor]) -> Callable[..., Any]:
    """Return a function that returns the trainer's loss as a module, and its batch."""
    parts = {name: part for name, part in vars(trainer).items() if isinstance(part, nn.Module)}
    on_meta = moved(parts, "meta")
    for name, part in on_meta.items():
        setattr(trainer, name, part)
    code = type(trainer).compute_loss
    items = {"num_items_in_batch": None} if "num_items_in_batch" in inspect.signature(code).parameters else {}
    size: int = trainer.args.train_batch_size
    rows = next(iter(example.values())).shape[0]
    if rows == 1 < size:
        raise InputError(
            f"a batch of the script has one row, not {size}: packed samples are not sized; leave out "
            "packing= and padding_free=, or give the trainer more samples"
        )
    of_sample = max(1, rows // size)  # pairs are two

    def build(batch: int = size) -> Any:
        made = moved(on_meta, "cpu")
        for name, part in made.items():
            setattr(trainer, name, part)

        def computed(model: nn.Module, inputs: dict[str, Any]) -> Any:
            return code(trainer, model, inputs, **items)

        model = made["model"].train()
        others = {name: part for name, part in made.items() if part is not model}
        inputs = {
            name: with_rows(tensor, batch * of_sample if tensor.shape[:1] == (rows,) else None)
            for name, tensor in example.items()
        }
        return Around(model, computed, others, code, ref(trainer)), inputs

    return build
