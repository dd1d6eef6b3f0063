"""The model to size, from a model file or a Hugging Face configuration, and the loop that trains it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..graphs.errors import InputError
from ..graphs.transformations.updates import When

if TYPE_CHECKING:
    from ..model.file import ModelFile
    from ..model.variant import Variant
    from ..profiling.profile.estimates import Estimates
    from ..profiling.profile.kept_traces import KeptTraces


Build = Callable[..., Any]
"""A function that builds a model, as the `build` of a model file does."""

_SUFFIXES = (".py", ".json", ".yaml", ".yml")
"""Suffixes of files that a model may be given as: a name that ends so is no id."""

QUANTIZED = ("nf4", "nf4-nested")
"""Kinds of model/quantised.py."""

AUTOCAST_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class LoopOptions:
    """Changes of the model and of its training loop.

    total: samples per update, None if micro-batches are given.
    split: say what operations in pieces buy.
    master_weights: weights of 16 bits have float32 masters.
    expandable_segments: PyTorch's allocator has them.
    param_dtype, reduce_dtype: of FSDP2's MixedPrecisionPolicy, see mixed_precision.py.
    """

    lora: str | None = None
    autocast: str | None = None
    attention: str | None = None
    quantize: str | None = None
    accumulate: int = 1
    total: int | None = None
    split: bool = False
    master_weights: bool = False
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    expandable_segments: bool = False

    @property
    def changes_model(self) -> bool:
        return bool(self.lora or self.autocast or self.attention or self.param_dtype)

    @property
    def dtype(self) -> str | None:
        """The dtype that autocast computes in, or that weights are gathered in."""
        return self.param_dtype if self.autocast is None else AUTOCAST_DTYPES[self.autocast]

    @property
    def precision(self) -> str:
        """Which float32 weights there are besides those of 16 bits, in words; empty if there are none."""
        if self.param_dtype is None:
            return "float32 master weights" if self.master_weights else ""
        reduced = self.reduce_dtype or self.param_dtype
        return f"float32 shares, gathered in {self.param_dtype}; gradients are summed up in {reduced}"

    def steps(self, batch: int) -> int:
        """Return the micro-batches per update. batch: samples of one."""
        return self.accumulate if self.total is None else self.total // batch

    def divisors(self) -> list[int]:
        """Return the micro-batches that divide the samples of an update."""
        total = self.total or 0
        return [size for size in range(1, total + 1) if total % size == 0]


class Subject(NamedTuple):
    """The model to size.

    what: a short description, None if the file alone describes it.
    with_loop: returns the same model with other options; its file is not run once more. None: there is none.
    of_length: returns the graphs of the same configuration with samples of another length.
    """

    name: str
    what: str | None
    optimizer: str
    estimates: Estimates
    loop: LoopOptions = LoopOptions()
    with_loop: Callable[[LoopOptions], Subject] | None = None
    of_length: Callable[[int], Estimates] | None = None


def open_subject(
    model: str | Build | ModelFile,
    length: int | None,
    dtype: str | None,
    optimizer: str,
    update: When,
    loop: LoopOptions,
    report: Callable[[str], None],
    *,
    cached: bool = True,
) -> Subject:
    """Open a model file, by its path or read already, a configuration, or a function that builds a model.

    length, dtype: for a configuration. loop: options that change what is trained. cached: traces are kept on
    disk, and taken from there, but for a function. Raises MemplanError, one line.
    """
    from ..model.file import ModelFile, model_file_of
    from ..profiling.profile.estimates import Estimates
    from ..profiling.profile.kept_traces import KeptTraces
    from ..updates.choice import OptimizerChoice

    def chosen(loop: LoopOptions) -> OptimizerChoice | None:
        masters = loop.master_weights or loop.param_dtype is not None
        return None if optimizer == "none" else OptimizerChoice(optimizer, update, master_weights=masters)

    if isinstance(model, str):
        model = _local(model)
    configuration = model

    @cache
    def of_length(length: int) -> Estimates:
        asked = configuration, length, dtype, optimizer, update
        return open_subject(*asked, loop=loop, report=report, cached=cached).estimates

    first, asked = _variant(loop), (model, length, dtype)
    if isinstance(model, str):
        path = _path_of(model)
        kept = KeptTraces(path, *asked, first, chosen(loop)) if cached else None
        file, what = _opened(model, length, dtype, kept)
    else:
        kept, what = None, None
        _refuse_for_code(length, dtype)
        file = model if isinstance(model, ModelFile) else model_file_of(model)

    def with_loop(loop: LoopOptions) -> Subject:
        variant, choice = _variant(loop), chosen(loop)
        own = kept and kept.with_options(*asked, variant, choice)
        estimates = Estimates(file._replace(variant=variant), choice, report, own)
        return Subject(
            file.name, what, optimizer, estimates, loop=loop, with_loop=with_loop, of_length=of_length
        )

    return with_loop(loop)


def _path_of(model: str) -> Path:
    from ..model.file import path_and_entry
    from ..model.hugging_face import configuration_file, is_configuration

    return configuration_file(model) if is_configuration(model) else Path(path_and_entry(model)[0])


def _opened(
    model: str, length: int | None, dtype: str | None, kept: KeptTraces | None
) -> tuple[ModelFile, str | None]:
    """Return the model of a path, and a configuration in words. kept: traces on disk, if any are used."""
    from ..model.file import ModelFile, load_model_file
    from ..model.hugging_face import Configured, is_configuration, load_configuration

    if not is_configuration(model):
        _refuse_for_code(length, dtype)
        with nullcontext() if kept is None else kept.watching():
            return load_model_file(model), None
    load = cache(lambda: load_configuration(model, length, dtype))

    def described() -> list[Any]:
        return [load()[0].label, *load()[1]]

    def build(batch: int = 1) -> Any:
        return load()[0].function(batch)  # transformers is imported when the first trace needs it

    as_it_is: Any = list  # what JSON can carry
    found = described() if kept is None else kept.value(described, as_it_is, as_it_is, "configuration")
    label, made = found[0], Configured(*found[1:])
    tokens = "" if made.length is None else f", {made.length:,} tokens a sample"
    return ModelFile(model, "build", build, label=label), f"{made.model}, weights in {made.dtype}{tokens}"


def _refuse_for_code(length: int | None, dtype: str | None) -> None:
    if length is not None or dtype is not None:
        option = "--seq-len" if length is not None else "--dtype"
        raise InputError(f"{option} is for a Hugging Face configuration: a model's code decides it itself")


def _variant(loop: LoopOptions) -> Variant | None:
    """Return the options that change the model; None if none does. Raises InputError."""
    from ..model.lora import parse_low_rank
    from ..model.variant import Variant

    if loop.quantize is not None and loop.lora is None:
        raise InputError("--quantize freezes the weights: add --lora r=16, whose adapters are trained")
    if not loop.changes_model:
        return None
    lora = None if loop.lora is None else parse_low_rank(loop.lora)
    gathered = loop.param_dtype is not None
    return Variant(lora, loop.autocast, loop.attention, loop.quantize, gathered)


def _local(model: str) -> str:
    """Return the path of a model: of a model of the Hugging Face hub that of its cached configuration.

    Raises InputError, one line, for one that is not cached and for a file's name without suffix.
    """
    from ..model.hub_cache import cached_file, hub_cache, is_hub_id
    from ..model.hugging_face import NAME

    if Path(model).exists() or not is_hub_id(model) or Path(model).suffix in _SUFFIXES:
        return model
    if (file := Path(f"{model}.py")).is_file():
        raise InputError(f"{model}: no such file: is it {file}?")
    if (cached := cached_file(model, NAME)) is not None:
        return str(cached)
    raise InputError(
        f"{model}: no such file or folder, and no such model in the cache of the Hugging Face hub, "
        f"{hub_cache()}. Nothing is downloaded here; its configuration is enough: "
        f"hf download {model} {NAME}, then this command"
    )
