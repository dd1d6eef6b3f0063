"""Models of a training script without their weights, and the run of the script up to its training.

from_pretrained                  the model of the configuration, on meta: no weights are read
weights in 4 bits                layers of the same bytes (quantised.py)
.to(device), .cuda()             nothing moves
gradient_checkpointing_enable    does nothing: memplan counts checkpointing by itself
"""

from __future__ import annotations

import ast
import copy
import runpy
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..graphs.files.documents import regular_size
from ..torch_support.torch_modules import buffers_of, model_of_configuration, parameters_of
from .file import DEFAULT_ENTRY
from .lora import quantise_linear_layers

_MOST_BYTES = 2**20
_CHECKPOINTING = (
    "gradient_checkpointing_enable",
    "activation_checkpointing_enable",
    "enable_input_require_grads",
)
_INSTEAD = "plan size config.json --gpu NAME --lora r=16 --quantize nf4"


class TrainingReached(BaseException):
    """The script would train now."""


def names_of_script(path: Path) -> tuple[set[str], set[str]]:
    """Return the names and the attributes in a Python file without `build`; none of any other file.

    Names of the file's own classes are left out.
    """
    nothing = set[str](), set[str]()
    if path.suffix != ".py" or not path.is_file() or regular_size(path) > _MOST_BYTES:
        return nothing
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # who runs it says where
        return nothing
    if any(DEFAULT_ENTRY in _bound(statement) for statement in tree.body):
        return nothing
    nodes = [*ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names -= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return names, {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of the file may bind."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    aliases = (node for node in ast.walk(statement) if isinstance(node, ast.alias))
    return names | {alias.asname or alias.name for alias in aliases}


def run_script(path: Path, words: Sequence[str], reached: Sequence[Any]) -> None:
    """Run a script until TrainingReached is raised. words: its command line. reached: empty until then."""
    try:
        with patch.object(sys, "argv", [str(path), *words]):
            runpy.run_path(str(path), run_name="__main__")
    except TrainingReached:
        pass
    except SystemExit as error:
        if not reached:
            raise InputError(
                f"{path}: ends by sys.exit({error.code!r}) before it trains; a command line for it: "
                "--script-args '--name value'"
            ) from error
    except BaseException:
        if not reached:  # else the script has caught TrainingReached, and failed without a result
            raise


@contextmanager
def without_weights() -> Generator[None]:
    """Let transformers and PyTorch do what this file's docstring says."""
    with ExitStack() as patches:
        for where, name, new in _replaced():
            if hasattr(where, name):
                patches.enter_context(patch.object(where, name, new))
        yield


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    yield nn.Module, "to", _with_dtype(nn.Module.to)
    yield nn.Module, "cuda", stay
    try:
        from transformers import PreTrainedModel
    except ModuleNotFoundError:
        return
    yield PreTrainedModel, "from_pretrained", classmethod(_from_configuration)
    for name in _CHECKPOINTING:
        yield PreTrainedModel, name, stay


def stay(self: Any, *_arguments: Any, **_keywords: Any) -> Any:
    """Return the object: replaces a method that changes where it is, or how it runs."""
    return self


def _from_configuration(cls: Any, name: Any, *_arguments: Any, config: Any = None, **options: Any) -> Any:
    """Make the model of a configuration on meta, with the dtype and the attention that are asked for."""
    quantised = _quantisation(options)
    if config is None or isinstance(config, str | Path):
        config = cls.config_class.from_pretrained(config or name, **_of_hub(options))
    quantised = quantised or _quantisation(
        {"quantization_config": getattr(config, "quantization_config", None)}
    )
    dtype = options.get("dtype", options.get("torch_dtype"))
    made = {} if dtype in (None, "auto") else {"dtype": dtype}
    if attention := options.get("attn_implementation"):
        made["attn_implementation"] = attention
    for key in [key for key in options if hasattr(config, key)]:  # num_labels and its like
        setattr(config, key, options[key])
    with torch.device("meta"):
        model: Any = model_of_configuration(cls, config, **made).eval()
        if quantised is not None:
            quantise_linear_layers(model, *quantised)
            model.is_loaded_in_4bit = True  # peft and TRL ask for it
    return model


def _quantisation(options: dict[str, Any]) -> tuple[str, torch.dtype] | None:
    """Return kind and dtype of weights in 4 bits, None for whole weights. Raises InputError for others."""
    given = options.pop("quantization_config", None)
    row: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if given is not None and not row:  # a BitsAndBytesConfig, or one of another method
        row = {**vars(given), "load_in_4bit": getattr(given, "load_in_4bit", False)}
    row = {**row, **{key: value for key, value in options.items() if key.startswith(("load_in", "bnb_"))}}
    for key in [key for key in options if key.startswith(("load_in", "bnb_"))]:
        del options[key]
    if row.get("load_in_4bit"):
        if row.get("llm_int8_skip_modules"):
            raise InputError(f"llm_int8_skip_modules is not read from a script: leave it out, or {_INSTEAD}")
        dtype = row.get("bnb_4bit_compute_dtype") or torch.float32
        dtype = getattr(torch, dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
        return "nf4-nested" if row.get("bnb_4bit_use_double_quant") else "nf4", dtype
    if given is not None or row.get("load_in_8bit"):
        raise InputError(
            "of quantised weights only bitsandbytes' in 4 bits are read from a script: "
            f"BitsAndBytesConfig(load_in_4bit=True), or {_INSTEAD}"
        )
    return None


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


def moved(parts: Mapping[str, nn.Module], device: str) -> dict[str, nn.Module]:
    """Return copies without values on a device; parameters that modules share stay shared."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def copied(tensor: Tensor) -> Tensor:
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
                memo[id(tensor)] = copied(tensor)
    return copy.deepcopy(dict(parts), memo)


def with_rows(tensor: Tensor, rows: int | None) -> Tensor:
    """Return a tensor with as many rows, None: its own; under fake tensors without values."""
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    if type(torch.empty(0, device=tensor.device)) is not Tensor:
        return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    if rows is None:
        return tensor.clone()
    return tensor.repeat(-(-rows // tensor.shape[0]), *[1] * (tensor.dim() - 1))[:rows].clone()
