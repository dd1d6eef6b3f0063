"""A model from a Hugging Face configuration: `config.json`, or the folder that it lies in.

The model is made with random weights, so nothing is downloaded, and with an example batch of one length. The
first of the configuration's `architectures` is the class; if that has no loss (`BertModel`), or none is
named, the class of that model type which has one. Labels are the tokens themselves, or classes.

transformers is imported here alone, and only when a configuration is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from ..graphs.errors import InputError, MissingPackageError
from ..graphs.files.documents import read_bytes
from ..graphs.files.kinds import kind_of
from ..graphs.undisturbed import undisturbed
from .file import ModelFile

NAME = "config.json"
_MOST_BYTES = 16 * 2**20
LONGEST, UNKNOWN, WHOLE = 1024, 512, 64
"""Tokens of a sample, if the user doesn't say: at most; if the configuration doesn't say; and the number
of which they are a multiple. RoBERTa has 514 positions for 512 tokens.
"""

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Configured(NamedTuple):
    """A configuration and what was chosen for it.

    length: tokens of a sample, None for images.
    """

    model: str
    length: int | None
    dtype: str


def is_configuration(text: str) -> bool:
    path = Path(text)
    return path.suffix == ".json" or (path / NAME).is_file()


def configuration_file(text: str) -> Path:
    """Return the file of a configuration. text: its path, or that of its folder."""
    path = Path(text)
    return path / NAME if path.is_dir() else path


@undisturbed()
def load_configuration(
    text: str, length: int | None = None, dtype: str | None = None
) -> tuple[ModelFile, Configured]:
    """Read a configuration as a model file with a `build` function.

    text: path of the configuration or of its folder.
    length: tokens of a sample, by default as many as the model has positions for, up to LONGEST.
    dtype: of the weights, one of TYPES, by default the configuration's.

    Raises MemplanError, one line.
    """
    path = Path(text)
    config = _read(configuration_file(text))
    kind = _class_of(config, path)
    chosen = dtype or str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if chosen not in TYPES:
        raise InputError(f"{path}: its weights are {chosen}: choose one of {', '.join(TYPES)}")
    if hasattr(config, "use_cache"):
        config.use_cache = False  # keys and values for generation would be outputs
    positions = _length(config, length, path) if kind.main_input_name == "input_ids" else None
    if length and positions is None:
        raise InputError(f"{path}: {kind.__name__} takes no tokens, so it has no length")
    example = _example(kind, config, positions, path)

    def build(batch: int = 1) -> tuple[Any, dict[str, torch.Tensor]]:
        model = kind(config).to(TYPES[chosen]).train()
        return model, {
            # Zero is a token and a class of every model.
            name: torch.zeros(
                (batch, *shape), dtype=TYPES[chosen] if name in _REAL else torch.int64, device="cpu"
            )
            for name, shape in example.items()
        }

    name = path.name if path.is_dir() else config.model_type
    file = ModelFile(str(path), "build", build, label=name)
    return file, Configured(kind.__name__, positions, chosen)


def _read(path: Path) -> Any:
    """Read the configuration as transformers does, from this file alone."""
    try:
        document = json.loads(read_bytes(path, _MOST_BYTES))
    except RecursionError:
        raise InputError(f"{path}: is not JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {_line(error)}") from None
    if not isinstance(document, dict) or "model_type" not in document:
        what = kind_of(cast("dict[str, Any]", document)) if isinstance(document, dict) else None
        why = f"it is {what}" if what else "it has no model_type"
        raise InputError(f"{path}: is not a Hugging Face configuration: {why}")
    try:
        from transformers import AutoConfig
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingPackageError(
            f"{path}: needs transformers, which is not installed: pip install 'memplan[examples]'"
        ) from None
    try:
        # Nothing is downloaded, and no code of the folder runs.
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as many kinds as there are model types
        raise InputError(f"{path}: transformers can't read it: {_line(error)}") from error


def _class_of(config: Any, path: Path) -> Any:
    """Return a class whose forward returns a loss. Raises InputError."""
    import transformers

    names = getattr(config, "architectures", None) or []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f'{path}: architectures is no list of names, like ["LlamaForCausalLM"]')
    named = getattr(transformers, names[0], None) if names else None
    if names and not (isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)):
        raise InputError(f"{path}: this transformers, {transformers.__version__}, has no model {names[0]}")
    if named is not None and _has_loss(names[0]):
        return named
    for mapping in (
        transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    ):
        if type(config) in mapping:
            found: Any = mapping[type(config)]
            return found[0] if isinstance(found, tuple | list) else found
    raise InputError(f"{path}: no class of {config.model_type} models has a loss: {_WRITE_ONE}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


_WRITE_ONE = "write a model file (docs/models.md)"


def _has_loss(name: str) -> bool:
    return "For" in name or name.endswith("LMHeadModel")


def _length(config: Any, length: int | None, path: Path) -> int:
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    if length is None:
        longest = min(int(most or UNKNOWN), LONGEST)
        return longest // WHOLE * WHOLE or longest
    if most is not None and length > most:
        too_long = f"the model has {most:,} positions, not {length:,}"
        raise InputError(f"{path}: {too_long}: --seq-len {most} is the most")
    return length


_REAL = ("pixel_values",)
_TOKENS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")


def _example(kind: Any, config: Any, length: int | None, path: Path) -> dict[str, tuple[int, ...]]:
    """Return per argument its shape without the batch.

    Raises InputError for a class that takes something else.
    """
    name: str = kind.__name__
    if length is not None:
        tokens = {"input_ids": (length,)}
        if name.endswith(_TOKENS):
            return {**tokens, "labels": (length,)}
        if name.endswith("ForSequenceClassification"):
            # Without one these classes take no batch of more than one sample. A model of images and text has
            # it in the configuration of its text.
            text = config.get_text_config()
            if getattr(text, "pad_token_id", None) is None:
                text.pad_token_id = 0
            return {**tokens, "labels": ()}
        if name.endswith("ForQuestionAnswering"):
            return {**tokens, "start_positions": (), "end_positions": ()}
    elif kind.main_input_name == "pixel_values" and name.endswith("ForImageClassification"):
        size = getattr(config, "image_size", None) or 224
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        return {"pixel_values": (getattr(config, "num_channels", 3), *sides), "labels": ()}
    raise InputError(f"{path}: there is no example batch for {name}: {_WRITE_ONE}")
