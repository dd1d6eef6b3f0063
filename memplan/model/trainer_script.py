"""A training script of transformers' Trainer, run up to its `train()`: the model, a batch, the arguments.

The script runs as Python would run it, but for what a run on this machine can't do or does not need:

    from_pretrained       the model of the configuration, on meta: no weights are read
    .to(device), .cuda()  nothing moves
    TrainingArguments     noted, then without precision, optimizer, sharding and checkpointing, which memplan
                          counts by itself and which may need a GPU or packages that are not here
    Trainer.train()       ends the script

Afterwards every weight is on meta. `build` makes the model and its batch from that each time it is called.
"""

from __future__ import annotations

import ast
import copy
import inspect
import runpy
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import ref

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..graphs.files.documents import regular_size
from ..graphs.folders.scratch import Scratch
from ..torch_support.torch_modules import (
    MOVE_OF_TRAINER,
    buffers_of,
    model_of_configuration,
    parameters_of,
)
from .file import DEFAULT_ENTRY, ModelFile, guarded, imports_from
from .processes import Around

BATCHES = 8
"""Batches of the script's data, of which the largest counts."""
_MOST_BYTES = 2**20
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
    """What a script trains.

    kind: the trainer's class. arguments: of its TrainingArguments, as the script gave them.
    batch: shapes of its tensors.
    """

    file: ModelFile
    kind: str
    arguments: dict[str, Any]
    batch: dict[str, tuple[int, ...]]


class _TrainReached(BaseException):
    """The script has called `train()`."""


def is_trainer_script(path: Path) -> bool:
    """Tell whether a file has no `build`, and calls `train()` of something whose name ends with Trainer."""
    if path.suffix != ".py" or not path.is_file() or regular_size(path) > _MOST_BYTES:
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # who runs it says where
        return False
    if any(DEFAULT_ENTRY in _bound(statement) for statement in tree.body):
        return False
    nodes = [*ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return "train" in attributes and any(name.endswith("Trainer") for name in names | attributes)


def read_trainer_script(path: Path, words: Sequence[str] = ()) -> TrainerScript:
    """Run a script up to `Trainer.train()`. words: its command line. Raises InputError, one line."""
    reached = list[Any]()
    given: dict[int, dict[str, Any]] = {}
    with imports_from(path), Scratch("script") as folder, _prepared(reached, given, folder):
        guarded(path, "the script fails before it trains", lambda: _run(path, words, reached))
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


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of the file may bind."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    aliases = (node for node in ast.walk(statement) if isinstance(node, ast.alias))
    return names | {alias.asname or alias.name for alias in aliases}


def _run(path: Path, words: Sequence[str], reached: list[Any]) -> None:
    try:
        with patch.object(sys, "argv", [str(path), *words]):
            runpy.run_path(str(path), run_name="__main__")
    except _TrainReached:
        pass
    except SystemExit as error:
        if not reached:
            raise InputError(
                f"{path}: ends by sys.exit({error.code!r}) before it trains; a command line for it: "
                "--script-args '--name value'"
            ) from error
    except BaseException:
        if not reached:  # else the script has caught _TrainReached, and failed without a result of train()
            raise


@contextmanager
def _prepared(reached: list[Any], given: dict[int, dict[str, Any]], folder: str) -> Generator[None]:
    """Let the libraries do what this file's docstring says. folder: for output_dir."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise InputError("a script of transformers' Trainer needs the package transformers") from error
    trainer, arguments, pretrained = (
        transformers.Trainer,
        transformers.TrainingArguments,
        transformers.PreTrainedModel,
    )
    own: Any = arguments.__post_init__

    def train(self: Any, *_arguments: Any, **_keywords: Any) -> None:
        reached.append(self)
        raise _TrainReached

    def noted(self: Any) -> None:
        given[id(self)] = dict(vars(self))
        for name, value in {**_NEUTRAL, "output_dir": folder}.items():
            if hasattr(self, name):
                setattr(self, name, value)
        own(self)

    with ExitStack() as patches:
        for where, name, new in (
            (trainer, "train", train),
            (trainer, MOVE_OF_TRAINER, _left),
            (arguments, "__post_init__", noted),
            (pretrained, "from_pretrained", classmethod(_from_configuration)),
            (nn.Module, "to", _with_dtype(nn.Module.to)),
            (nn.Module, "cuda", _left),
        ):
            if hasattr(where, name):
                patches.enter_context(patch.object(where, name, new))
        yield


def _left(self: Any, *_arguments: Any) -> Any:
    return self


def _from_configuration(cls: Any, name: Any, *_arguments: Any, config: Any = None, **options: Any) -> Any:
    """Make the model of a configuration on meta, with the dtype and the attention that are asked for."""
    if options.get("quantization_config") is not None or options.get("load_in_4bit"):
        raise InputError(
            "weights in 4 or 8 bits are not read from a script: "
            "plan size config.json --gpu NAME --lora r=16 --quantize nf4"
        )
    if config is None or isinstance(config, str | Path):
        config = cls.config_class.from_pretrained(config or name, **_of_hub(options))
    dtype = options.get("dtype", options.get("torch_dtype"))
    made = {} if dtype in (None, "auto") else {"dtype": dtype}
    if attention := options.get("attn_implementation"):
        made["attn_implementation"] = attention
    for key in [key for key in options if hasattr(config, key)]:  # num_labels and its like
        setattr(config, key, options[key])
    with torch.device("meta"):
        return model_of_configuration(cls, config, **made).eval()


def _of_hub(options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cache_dir", "revision", "token", "local_files_only", "trust_remote_code", "subfolder")
    return {name: options[name] for name in names if name in options}


def _with_dtype(own: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def to(self: nn.Module, *arguments: Any, **keywords: Any) -> nn.Module:
        values = (*arguments, *keywords.values())
        dtypes = (value.dtype if isinstance(value, Tensor) else value for value in values)
        dtype = next((value for value in dtypes if isinstance(value, torch.dtype)), None)
        return self if dtype is None else own(self, dtype)

    return to


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
    on_meta = _moved(parts, "meta")
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
        made = _moved(on_meta, "cpu")
        for name, part in made.items():
            setattr(trainer, name, part)

        def computed(model: nn.Module, inputs: dict[str, Any]) -> Any:
            return code(trainer, model, inputs, **items)

        model = made["model"].train()
        others = {name: part for name, part in made.items() if part is not model}
        inputs = {
            name: _rows(tensor, batch * of_sample if tensor.shape[:1] == (rows,) else None)
            for name, tensor in example.items()
        }
        return Around(model, computed, others, code, ref(trainer)), inputs

    return build


def _moved(parts: Mapping[str, nn.Module], device: str) -> dict[str, nn.Module]:
    """Return copies without values on a device; parameters that modules share stay shared."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def moved(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            form = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            new = nn.Parameter(form, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else form
            known[id(tensor)] = tensor, new
        return known[id(tensor)][1]

    memo: dict[int, Any] = {}
    every = {id(module): module for part in parts.values() for module in part.modules()}
    for module in every.values():
        for tensor in (*parameters_of(module).values(), *buffers_of(module).values()):
            if tensor is not None:
                memo[id(tensor)] = moved(tensor)
    return copy.deepcopy(dict(parts), memo)


def _rows(tensor: Tensor, rows: int | None) -> Tensor:
    """Return a tensor with as many rows, None: its own; under fake tensors without values."""
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    if type(torch.empty(0, device=tensor.device)) is not Tensor:
        return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    if rows is None:
        return tensor.clone()
    return tensor.repeat(-(-rows // tensor.shape[0]), *[1] * (tensor.dim() - 1))[:rows].clone()
