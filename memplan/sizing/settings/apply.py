"""Settings of files as options of sizing: what the user gives holds, then the first file that says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...graphs.errors import InputError
from ..request import SizeRequest
from ..rooms import Note
from ..subject import AUTOCAST_DTYPES
from .read import is_settings, read_named, read_settings
from .script import with_script
from .settings import Option, Settings

_OF_LOOP = ("lora", "quantize", "autocast", "attention", "accumulate")
_OPTIONS = {
    "batch": "batches",
    "length": "length",
    "dtype": "dtype",
    "optimizer": "optimizer",
    "model": "model",
}
"""Options -> fields of SizeRequest."""
OPTIONS = (*(option for option in _OPTIONS if option != "model"), *_OF_LOOP, "total", "ranks", "link")
"""Options that the user may give, which hold against a file's."""
_OF_PRECISION = ("master_weights", "param_dtype")
"""Fields of LoopOptions that DeepSpeed and FSDP decide."""
_FLAGS = {"length": "--seq-len"}


def with_settings(
    request: SizeRequest,
    paths: Sequence[Path],
    given: Collection[str],
    note: Note,
    script_args: str = "",
) -> SizeRequest:
    """Return the request with what files of settings say, which notes tell. Raises InputError, one line.

    paths: files that go with the model, which may itself be one.
    given: names of options that the user gave, as `Settings.options` has them, and 'total', 'ranks', 'link'.
    script_args: the command line of a script.
    """
    request, found = with_script(request, script_args)
    model, files = request.model, [*paths]
    of_model = isinstance(model, str) and is_settings(Path(model))
    if of_model:
        # First: it holds against the files that go with it.
        files.insert(0, Path(str(model)))
    found = [*read_named(found), *(one for path in files for one in read_settings(path))]
    if not found:
        return request
    # A model that the user names is not replaced by that of a file.
    chosen, conflicts = _chosen(request, found, set(given) | (set() if of_model else {"model"}))
    for one in found:
        said = ", ".join(one.said) or "no option that matters here"
        note(f"from {one.name} ({one.tool}): {said}")
        if one.uncounted:
            note(f"{one.name}, not counted: {'; '.join(one.uncounted)}")
    if of_model and "model" not in chosen:
        tool, name = found[0].tool, files[0]
        raise InputError(
            f"{name}: is {tool}'s, and names no model: plan size config.json --gpu {request.gpu} "
            f"--train-config {name}"
        )
    made, more = _made(request, chosen, found, given)
    for line in (*conflicts, *more):
        note(line)
    return made


def _chosen(
    request: SizeRequest, found: Sequence[Settings], given: Collection[str]
) -> tuple[dict[str, Option], list[str]]:
    """Return the options to set, and a line for each that holds against another."""
    chosen, source, lines = dict[str, Option](), dict[str, str](), list[str]()
    for one in found:
        for option, (value, words) in one.options.items():
            if option in given:
                theirs = _given(request, option)
                if option != "model" and theirs != value:
                    lines.append(f"{_flag(option)} {theirs} holds, not {words} of {one.name}")
            elif option not in chosen:
                chosen[option], source[option] = value, f"{words} of {one.name}"
            # Files that agree are no conflict.
            elif chosen[option] != value:
                lines.append(f"{source[option]} holds, not {words} of {one.name}")
    return chosen, lines


def _made(
    request: SizeRequest, chosen: dict[str, Option], found: Sequence[Settings], given: Collection[str]
) -> tuple[SizeRequest, list[str]]:
    """Return the request with the options, and lines on those that it can't have together."""
    lines = list[str]()
    model = chosen.get("model", request.model)
    is_code = not isinstance(model, str) or Path(model).suffix == ".py" or ".py:" in model
    if "total" in given:
        for option in [option for option in ("batch", "accumulate") if option in chosen]:
            lines.append(f"--global-batch {request.loop.total} holds, not {option} {chosen.pop(option)}")
    if is_code:
        decided = [option for option in ("length", "dtype", "attention") if option in chosen]
        left = [f"{option} {chosen.pop(option)}" for option in decided]
        if left:
            lines.append(f"the model's code decides itself, not the file: {', '.join(left)}")
    if "quantize" in chosen and not (chosen.get("lora") or request.loop.lora):
        lines.append(
            f"{chosen.pop('quantize')} goes with LoRA, and there is none: the weights count as they are"
        )
    network, processes = request.network, next((one.processes for one in found if one.processes), None)
    sharded = next((one.sharded for one in found if one.sharded), None)
    # DDP's processes hold one GPU's bytes each: only sharding changes the answer.
    if network.ranks is None and processes and processes > 1:
        if sharded and network.link is not None:
            network = replace(network, ranks=processes)
        elif sharded:
            lines.append(
                f"{sharded} over {processes:,} processes: one GPU alone is counted; "
                f"--ranks {processes} --link pcie4 (or nvlink) shards over all"
            )
        else:
            lines.append(
                f"{processes:,} processes: each holds what one GPU holds here, and buckets of gradients"
            )
    elif network.ranks is None and sharded:
        lines.append(f"{sharded}: one GPU alone is counted; --ranks 8 --link pcie4 (or nvlink) shards over 8")
    if "autocast" in chosen and _decide_precision(request, chosen):
        is_open = not is_code and "dtype" not in given
        on_ranks = sharded == "FSDP" and network.ranks is not None and chosen["autocast"] == "bf16"
        if is_open and any(one.masters for one in found):
            lines.append(_set_masters(chosen))
        elif on_ranks and (is_open or is_code or request.dtype == "float32"):
            lines.append(_set_shares(chosen, is_open=is_open))
    if network.ranks is not None and int(chosen.get("accumulate", 1)) > 1:
        lines.append(
            f"accumulation {chosen.pop('accumulate')} is not counted: ranks have one micro-batch per update"
        )
    loop = {option: chosen.pop(option) for option in (*_OF_LOOP, *_OF_PRECISION) if option in chosen}
    fields: dict[str, Any] = {
        _OPTIONS[option]: [value] if option == "batch" else value for option, value in chosen.items()
    }
    return replace(request, **fields, loop=replace(request.loop, **loop), network=network), lines


def _decide_precision(request: SizeRequest, chosen: Mapping[str, Option]) -> bool:
    """Tell whether DeepSpeed or FSDP decides in which dtype weights are held.

    Adapters are float32 here, and a user's own masters or shares hold.
    """
    lora, optimizer = chosen.get("lora") or request.loop.lora, chosen.get("optimizer", request.optimizer)
    asked = request.loop.master_weights or request.loop.param_dtype
    return not lora and optimizer != "none" and not asked


def _set_masters(chosen: dict[str, Option]) -> str:
    """Replace autocast by weights of 16 bits with masters, as DeepSpeed has them. Returns a line."""
    half = AUTOCAST_DTYPES[str(chosen.pop("autocast"))]
    chosen |= {"dtype": half, "master_weights": True}
    return f"DeepSpeed holds weights and gradients in {half}, and float32 masters in the optimizer"


def _set_shares(chosen: dict[str, Option], *, is_open: bool) -> str:
    """Set float32 shares that are gathered in bfloat16, as accelerate's FSDP does under autocast too.

    is_open: whether the weights' dtype is free to choose. Returns a line.
    """
    chosen |= {"param_dtype": "bfloat16", **({"dtype": "float32"} if is_open else {})}
    return "FSDP has float32 shares, gathers weights and scatters gradients in bfloat16, under autocast"


def _given(request: SizeRequest, option: str) -> Any:
    if option == "batch":
        batches = request.batches or []
        return batches[0] if len(batches) == 1 else ",".join(map(str, batches))
    return getattr(request.loop if option in _OF_LOOP else request, option)


def _flag(option: str) -> str:
    return _FLAGS.get(option, f"--{option}")
