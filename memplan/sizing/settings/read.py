"""Files of settings: whose they are, and what they and the files that they name say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from ...graphs.errors import InputError
from ...graphs.files.documents import read_document, regular_size
from ...graphs.files.kinds import kind_of
from .distributed import read_accelerate, read_deepspeed
from .settings import Keys, Settings
from .trainers import read_axolotl, read_llama_factory, read_trl

_MOST_BYTES = 2**20
_SUFFIXES = (".yaml", ".yml", ".json")


class _Tool(NamedTuple):
    """A tool. keys: of which its files have one."""

    name: str
    keys: frozenset[str]
    read: Callable[[Keys, Settings], None]


# In this order: LLaMA-Factory's files have TRL's keys too, a trainer's may have fsdp_config.
_TOOLS = (
    _Tool("axolotl", frozenset(("base_model", "micro_batch_size", "sequence_len")), read_axolotl),
    _Tool("LLaMA-Factory", frozenset(("finetuning_type", "cutoff_len", "lora_rank")), read_llama_factory),
    _Tool("TRL", frozenset(("model_name_or_path", "per_device_train_batch_size", "use_peft")), read_trl),
    _Tool(
        "DeepSpeed",
        frozenset(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")),
        read_deepspeed,
    ),
    _Tool(
        "accelerate",
        frozenset(("distributed_type", "compute_environment", "mixed_precision", "fsdp_config")),
        read_accelerate,
    ),
)
READ = "axolotl's, TRL's, LLaMA-Factory's, accelerate's and DeepSpeed's are read"


def is_settings(path: Path) -> bool:
    """Tell whether a file is one of settings, and not a configuration of a model or another document."""
    if path.suffix not in _SUFFIXES or not path.is_file() or regular_size(path) > _MOST_BYTES:
        return False
    return path.suffix != ".json" or _tool(_mapping(path)) is not None


def read_settings(path: Path, above: Sequence[Path] = ()) -> list[Settings]:
    """Return what a file says, then what the files that it names say. Raises InputError, one line.

    above: the files that led to it, each of which names the next.
    """
    row = _mapping(path)
    tool = _tool(row)
    if tool is None:
        what = kind_of(row)
        why = f"it is {what}" if what else f"none of its keys is known; {READ}"
        raise InputError(f"{path}: is not a file of training settings: {why}")
    settings = Settings(path.name, tool.name)
    tool.read(Keys(row, str(path)), settings)
    return read_named([settings], [*above, path])


def read_named(settings: Sequence[Settings], above: Sequence[Path] = ()) -> list[Settings]:
    """Return settings, each with those of the files that it names.

    above: the file that names them, last, after those that led to it. Raises InputError if one of these is
    named.
    """
    found = list[Settings]()
    for one in settings:
        found.append(one)
        for name in one.includes:
            # Paths are relative to the folder in which training starts, or to the folder of the file.
            places = (Path(name), *(path.parent / name for path in above[-1:]))
            there = next((place for place in places if place.is_file()), None)
            if there is None:
                one.uncounted.append(f"{name}: no such file")
                continue
            known = [path.resolve() for path in above]
            if there.resolve() in known:
                circle = [*above[known.index(there.resolve()) :], there]
                following = ", which names ".join(map(str, circle[1:]))
                raise InputError(f"{circle[0]} names {following}: name no file that leads back to itself")
            found += read_settings(there, above)
    return found


def _tool(row: dict[str, Any]) -> _Tool | None:
    return next((tool for tool in _TOOLS if tool.keys & row.keys()), None)


def _mapping(path: Path) -> dict[str, Any]:
    if regular_size(path) > _MOST_BYTES:
        raise InputError(f"{path}: is not a file of training settings: it is larger than 1 MiB")
    row = read_document(path)
    if not isinstance(row, dict):
        raise InputError(f"{path}: is not a file of training settings: it has no keys")
    return cast("dict[str, Any]", row)
