"""The model of `plan size`: a model file, or a Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...graphs.errors import InputError
from ...graphs.transformations.updates import When
from .loop_options import LoopOptions

if TYPE_CHECKING:
    from ...runtime.profile.estimates import Estimates


class Subject(NamedTuple):
    """The model to size. what: a short description, None if the file alone describes it."""

    name: str
    what: str | None
    optimizer: str
    estimates: Estimates
    loop: LoopOptions = LoopOptions()


def open_subject(
    model: str,
    length: int | None,
    dtype: str | None,
    optimizer: str,
    update: When,
    loop: LoopOptions,
    report: Callable[[str], None],
) -> Subject:
    """Open a model file or configuration.

    length, dtype: for a configuration. loop: options that change what is trained. Raises MemplanError, one
    line.
    """
    from ...runtime.model.file import load_model_file
    from ...runtime.model.hugging_face import is_configuration, load_configuration
    from ...runtime.model.lora import parse_low_rank
    from ...runtime.model.variant import Variant
    from ...runtime.profile.estimates import Estimates
    from ...runtime.updates.choice import Choice

    _refuse_other_names(model)
    what = None
    if is_configuration(model):
        file, made = load_configuration(model, length, dtype)
        tokens = "" if made.length is None else f", {made.length:,} tokens a sample"
        what = f"{made.model}, weights in {made.dtype}{tokens}"
    elif length is not None or dtype is not None:
        option = "--seq-len" if length is not None else "--dtype"
        raise InputError(f"{option} is for a Hugging Face configuration: a model file decides it itself")
    else:
        file = load_model_file(model)
    if loop.changes_model:
        lora = None if loop.lora is None else parse_low_rank(loop.lora)
        file = file._replace(variant=Variant(lora, loop.autocast, loop.attention))
    choice = None if optimizer == "none" else Choice(optimizer, update)
    return Subject(file.name, what, optimizer, Estimates(file, choice, report), loop)


def _refuse_other_names(model: str) -> None:
    """Raise InputError, one line, for an id of the Hugging Face hub and for a file's name without suffix."""
    if Path(model).exists() or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", model):
        return
    if Path(model).suffix in (".py", ".json"):
        return
    if (file := Path(f"{model}.py")).is_file():
        raise InputError(f"{model}: no such file: is it {file}?")
    raise InputError(
        f"{model}: no such file or folder. Nothing is downloaded here; if it is a model of the Hugging Face "
        f"hub, its configuration is enough: hf download {model} config.json --local-dir {model}, "
        "then this command"
    )
