"""What a script of transformers' Trainer, or with a loop of accelerate, says: its options and its batch."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...graphs.errors import InputError
from ..request import SizeRequest
from .distributed import read_deepspeed
from .settings import Keys, Settings
from .trainers import read_arguments


def with_script(request: SizeRequest, line: str = "") -> tuple[SizeRequest, list[Settings]]:
    """Return the request with the model of a training script, and what the script says.

    A model that is no such script stays. line: the script's command line. Raises InputError, one line.
    """
    from ...model.loop_script import is_loop_script, read_loop_script
    from ...model.trainer_script import BATCHES, is_trainer_script, read_trainer_script

    path = Path(request.model) if isinstance(request.model, str) else Path()
    of_trainer = is_trainer_script(path)
    if not of_trainer and not is_loop_script(path):
        if line:
            raise InputError(
                "--script-args is for scripts of transformers' Trainer and of accelerate: leave it out"
            )
        return request, []
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InputError(f"--script-args {line!r} is no command line: {error}") from None
    if of_trainer:
        script = read_trainer_script(path, words)
        settings = Settings(path.name, f"a script of {script.kind}, up to train()")
        which = f"the largest of its first {BATCHES} batches"
    else:
        script = read_loop_script(path, words)
        settings = Settings(path.name, "a script of accelerate, up to its first backward()")
        which = "its first batch"
    values = script.arguments.items()
    row = {name: getattr(value, "value", value) for name, value in values}  # of enumerations
    read_arguments(Keys(row, str(path)), settings)
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in script.batch.items())
    settings.said.append(f"{which}: {shapes}")
    found = [settings]
    if isinstance(deepspeed := row.get("deepspeed"), dict):
        own = Settings("deepspeed=", "DeepSpeed")
        read_deepspeed(Keys(cast("dict[str, Any]", deepspeed), str(path)), own)
        found.append(own)
    return replace(request, model=script.file), found
