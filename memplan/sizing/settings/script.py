"""What a script of transformers' Trainer says: the options of its TrainingArguments, and its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..request import SizeRequest
from .distributed import read_deepspeed
from .settings import Keys, Settings
from .trainers import read_arguments


def with_script(request: SizeRequest, words: Sequence[str] = ()) -> tuple[SizeRequest, list[Settings]]:
    """Return the request with the model of a Trainer's script, and what the script says.

    A model that is no such script stays. words: the script's command line. Raises InputError, one line.
    """
    from ...model.trainer_script import BATCHES, is_trainer_script, read_trainer_script

    if not isinstance(request.model, str) or not is_trainer_script(path := Path(request.model)):
        return request, []
    script = read_trainer_script(path, words)
    settings = Settings(path.name, f"a script of {script.kind}, up to train()")
    row = {
        name: getattr(value, "value", value) for name, value in script.arguments.items()
    }  # of enumerations
    read_arguments(Keys(row, str(path)), settings)
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in script.batch.items())
    settings.said.append(f"the largest of its first {BATCHES} batches: {shapes}")
    found = [settings]
    if isinstance(deepspeed := row.get("deepspeed"), dict):
        own = Settings("deepspeed=", "DeepSpeed")
        read_deepspeed(Keys(cast("dict[str, Any]", deepspeed), str(path)), own)
        found.append(own)
    return replace(request, model=script.file), found
