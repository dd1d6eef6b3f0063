"""memplan.size: will it fit, in Python, with the answers of `plan size`."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from ..graphs.errors import InputError, MemplanError
from ..graphs.machine import Machine
from ..graphs.machines.network_request import NetworkRequest
from ..graphs.machines.presets import find_machine
from ..graphs.transformations.mixed_precision import PARAM_DTYPES, REDUCE_DTYPES
from ..graphs.transformations.updates import When
from ..planner.budget import parse_budget, parse_reserve
from ..report.origin import made
from ..report.size import page, sections_html
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .answer import Answer, answer_of
from .documents import document_of
from .lengths import Lengths, parse_lengths
from .request import SizeRequest, parse_batches
from .result import SizeResult
from .settings.apply import OPTIONS, with_settings
from .sizing import Sizes
from .subject import AUTOCAST_DTYPES, QUANTIZED, Build, LoopOptions


@dataclass(frozen=True)
class SizeAnswer:
    """The answer of `memplan.size`; as text it is what `plan size` prints first.

    sizes: all that was found.
    notes: lines for the user.
    """

    sizes: Sizes
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> list[SizeResult]:
        """The results by GPU, that with the least memory first."""
        return self.sizes.results

    @property
    def fits(self) -> bool:
        """Whether a batch fits, on one of the GPUs at least."""
        return any(found.fitting for found in self.results)

    @property
    def batch(self) -> int | None:
        """The batch to train with on one GPU, or on each rank; None if none fits, or of several GPUs."""
        if self.sizes.several or not self.results or self.results[0].advised is None:
            return None
        return self.results[0].advised.batch

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search early."""
        return bool(self.sizes.left) or any(found.interrupted for found in self.results)

    def document(self) -> dict[str, Any]:
        """Return what `plan size --json` prints: numbers in bytes and seconds."""
        return document_of(self.sizes)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page that `plan size -o size.html` writes. Raises InputError for another suffix."""
        if Path(path).suffix != ".html":
            raise InputError(f"{path}: the suffix must be .html")
        answer, title = answer_of(self.sizes), f"{self.sizes.subject.name}: will it fit?"
        Path(path).write_text(page(title, answer.sections, [made([])[0], "memplan.size"]), encoding="utf-8")

    @cached_property
    def _answer(self) -> Answer:
        return answer_of(self.sizes, page=False)

    def __str__(self) -> str:
        answer = self._answer
        lines = [answer.line] if answer.line else []
        width = max((len(label) for label, _words in (*answer.facts, *answer.summary)), default=0)
        lines += [f"{label:{width}}  {words}" for label, words in answer.facts]
        if self.sizes.several:
            lines += _text_table(answer.table.table.heads, answer.table.table.rows)
        lines += [f"{label:{width}}  {words}" for label, words in answer.summary]
        return in_python("\n".join(lines))

    def __repr__(self) -> str:
        if not self.sizes.several:
            return f"<SizeAnswer: {in_python(self._answer.line)}>"
        fitting = sum(bool(found.fitting) for found in self.results)
        return f"<SizeAnswer of {self.sizes.subject.name}: fits {fitting:,} of {len(self.results):,} GPUs>"

    def _repr_html_(self) -> str:
        return sections_html(self._answer.sections)


def size(
    model: str | PathLike[str] | Build,
    gpu: str | Sequence[str],
    *,
    host: str | None = None,
    lanes: int | None = None,
    machine: str | PathLike[str] | Machine | None = None,
    budget: str | int | None = None,
    reserve: str | int | None = None,
    batch: int | Sequence[int] | None = None,
    seq_len: int | None = None,
    lengths: str | PathLike[str] | Sequence[int] | None = None,
    dtype: str | None = None,
    optimizer: str = "adamw",
    update: When = "in-backward",
    lora: str | None = None,
    quantize: str | None = None,
    autocast: str | None = None,
    attention: str | None = None,
    master_weights: bool = False,
    expandable_segments: bool = False,
    accumulate: int = 1,
    global_batch: int | None = None,
    split: bool = False,
    ranks: int | None = None,
    link: str | None = None,
    replicas: int | None = None,
    replica_link: str | None = None,
    node_ranks: int | None = None,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    price: str | float | Mapping[str, float] | None = None,
    train_config: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    script_args: str = "",
    solver: str = DEFAULT_SOLVER,
    time_limit: float | None = None,
    settings: Mapping[str, str] | None = None,
    cache: bool = True,
    report: Callable[[str], None] | None = None,
) -> SizeAnswer:
    """Find which batch fits a GPU, how, and how fast: the answers of `plan size`.

    The GPU need not be here. Nothing is measured and nothing is downloaded.

    Args:
        model: A model file (`"model.py"`, `"model.py:entry"`), a `config.json` of Hugging Face or its
            folder, or a function that returns what `build` in a model file returns. If the function has a
            parameter `batch`, it is called once per batch. A script that trains by transformers' Trainer or
            TRL's (`"train.py"`) runs up to `train()`, without weights.
        gpu: A name, like `"rtx3060"`, several, or `"all"`.
        host: Memory of the GPU's host, as `"64GB"` or `"64GB,16cores,80GB/s"`; `None`: 64 GB.
        lanes: Number of PCIe lanes that the GPU has; `None`: all that it has.
        machine: A machine, its file or its name, that replaces what is known of the GPU's machine.
        budget: Device memory to use, like `"12GB"` or a number of bytes; `None`: all.
        reserve: Bytes to leave free; `None`: 1 % of the GPU, or none with a budget.
        batch: The batch to try, or several; `None`: search.
        seq_len: Tokens of a sample, for a configuration.
        lengths: Tokens of the samples, for a configuration, if each batch is padded to its longest: a range
            (`"64-2048"`), a list, or a file with a number of tokens on each line. Samples are cut to
            `seq_len`, if that is given.
        dtype: Dtype of the weights, for a configuration: `"float32"`, `"bfloat16"` or `"float16"`.
        optimizer: Optimizer whose states and updates count; `"none"`: forward and backward alone.
        update: When weights are updated: `"in-backward"` or `"after"`.
        lora: Adapters, like `"r=16"` or `"r=16,targets=q_proj+v_proj"`.
        quantize: Frozen weights in 4 bits, with `lora`: `"nf4"` or `"nf4-nested"`.
        autocast: Dtype of `torch.autocast`: `"bf16"` or `"fp16"`.
        attention: Attention of a model of transformers: `"eager"` or `"sdpa"`.
        master_weights: Whether weights in bfloat16 or float16 have float32 masters, and float32 states, in
            the optimizer.
        expandable_segments: Whether PyTorch's allocator has `PYTORCH_ALLOC_CONF=expandable_segments:True`,
            for the high ends without a plan.
        accumulate: Micro-batches per update.
        global_batch: Samples per update: find the fastest micro-batch that divides it.
        split: Also find what operations in pieces (`split=True`) buy, on one GPU.
        ranks: GPUs that train together, each with its own batch, their states sharded (FSDP).
        link: Network between the ranks, like `"nvlink"` or `"45GB/s"`.
        replicas: Sets of ranks, between which gradients are all-reduced (HSDP).
        replica_link: Network between the replicas; `None`: that of `link`.
        node_ranks: Ranks on one node, which divide its host.
        param_dtype: `"bfloat16"`: float32 weights are gathered so, as `param_dtype` of FSDP2's
            `MixedPrecisionPolicy` says; shares stay in float32.
        reduce_dtype: Dtype in which ranks sum up gradients, `"bfloat16"` or `"float32"`; `None`: that of
            `param_dtype`.
        price: Price of the GPU per hour, or prices by name.
        train_config: Training settings in a file of another tool, or in several: DeepSpeed's, accelerate's,
            axolotl's, TRL's, LLaMA-Factory's. The arguments of the call hold against them. `model` may be
            such a file too, if it names the model.
        script_args: Command line of a script, if `model` is one that trains by transformers' Trainer.
        solver: Name of the solver.
        time_limit: Seconds for each question to the solver; `None`: 6 s, more for large models.
        settings: Settings of the solver, by name.
        cache: Whether traces that an earlier call kept are used, and those of this one kept.
        report: A function that takes lines of progress; `None`: they are dropped.

    Returns:
        The answer. `print(answer)` shows what `plan size` prints first, `answer.batch` is the batch to train
        with, `answer.document()` has all figures, `answer.save("size.html")` writes the page.

    Raises:
        MemplanError: One line, like that of the command. If no batch fits, `answer.fits` is false instead.

    Example:
        >>> answer = memplan.size("config.json", "rtx4090", seq_len=512)    # doctest: +SKIP
        >>> answer.batch                                                    # doctest: +SKIP
        16
    """
    from ..graphs.collector import collector_seldom

    _check_words("update", update, ("in-backward", "after"))
    _check_words("quantize", quantize, QUANTIZED)
    _check_words("autocast", autocast, AUTOCAST_DTYPES)
    _check_words("param_dtype", param_dtype, PARAM_DTYPES)
    _check_words("reduce_dtype", reduce_dtype, REDUCE_DTYPES)
    _check_words("attention", attention, ("eager", "sdpa"))
    _check_counts(seq_len=seq_len, accumulate=accumulate, global_batch=global_batch, lanes=lanes)
    _check_optimizer(optimizer)
    _check_model(model)
    if time_limit is not None and not 0 < time_limit < inf:
        raise InputError(f"time_limit={time_limit!r}: give seconds, above 0 and finite")
    notes, progress = list[str](), report or _drop
    with _spelled_for_python(), collector_seldom():
        request = SizeRequest(
            model if callable(model) else str(model),
            gpu if isinstance(gpu, str) else ",".join(gpu),
            host,
            None if lanes is None else str(lanes),
            machine=_machine(machine, progress),
            budget=None if budget is None else parse_budget(str(budget)),
            reserve=None if reserve is None else parse_reserve(str(reserve)),
            batches=_batches(batch),
            length=seq_len,
            lengths=_lengths(lengths),
            dtype=dtype,
            price=_price_text(price),
            optimizer=optimizer,
            update=update,
            loop=LoopOptions(
                lora,
                autocast,
                attention,
                quantize,
                accumulate,
                total=global_batch,
                split=split,
                master_weights=master_weights,
                param_dtype=param_dtype,
                reduce_dtype=reduce_dtype,
                expandable_segments=expandable_segments,
            ),
            network=NetworkRequest(ranks, link, replicas, replica_link, node_ranks),
            solver=solver,
            settings=settings or {},
            time_limit=time_limit,
            cached=cache,
        )
        files = [train_config] if isinstance(train_config, str | PathLike) else train_config
        request = with_settings(
            request, [Path(one) for one in files], _given(request), notes.append, script_args
        )
        sizing = request.sizing(request.presets(notes.append), progress, notes.append)
        at_once = [*sizing.at_once()] if sizing.several else []
        # Ctrl-C in the first stage: no solver is asked.
        complete = not sizing.several or len(at_once) == len(sizing.gpus)
        sizes = sizing.together([*sizing.results()] if complete else [], at_once)
        notes += sizing.notes()
    return SizeAnswer(sizes, tuple(map(in_python, notes)))


_VALUE = r"[\d|][\w|./]*|[a-z]=\w+(?:[,+=]\w+)*|\w+(?:\|\w+)+|[\w.-]+\.yaml"
_OPTION = re.compile(rf"(?<![\w-])--([a-z][a-z-]*[a-z])(?: ({_VALUE}))?")


def in_python(text: str) -> str:
    """Return a text in which options are spelled as in Python: '--seq-len 512' as 'seq_len=512'."""
    known = signature(size).parameters

    def spelled(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        if name not in known:  # of another command
            return match[0]
        quote = "" if value is None or value.isdecimal() else '"'
        return f"{name}={quote}{value or ''}{quote}"

    return _OPTION.sub(spelled, text)


@contextmanager
def _spelled_for_python() -> Generator[None]:
    try:
        yield
    except MemplanError as error:
        error.args = (in_python(str(error)),)
        raise


def _text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([*cells[:-1], row[-1]])


def _given(request: SizeRequest) -> set[str]:
    """Return the options of a call that are not the defaults, by the names that settings of files have."""
    asked: dict[str, Any] = {
        **vars(request),
        **vars(request.loop),
        **vars(request.network),
        "batch": request.batches,
    }
    defaults = {"optimizer": "adamw", "accumulate": 1}
    return {name for name in OPTIONS if asked[name] != defaults.get(name)}


def _drop(line: str) -> None:
    del line


def _machine(machine: str | PathLike[str] | Machine | None, report: Callable[[str], None]) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if str(machine) == "auto":
        from ..devices.measuring.kept_machine import auto_machine

        return auto_machine(report).machine
    return find_machine(str(machine))


def _batches(batch: int | Sequence[int] | None) -> list[int] | None:
    if batch is None:
        return None
    return parse_batches(",".join(map(str, [batch] if isinstance(batch, int) else batch)))


def _lengths(lengths: str | PathLike[str] | Sequence[int] | None) -> Lengths | None:
    if lengths is None:
        return None
    given = isinstance(lengths, str | PathLike)
    return parse_lengths(str(lengths) if given else ",".join(map(str, lengths)))


def _price_text(price: str | float | Mapping[str, float] | None) -> str | None:
    if isinstance(price, Mapping):
        return ",".join(f"{name}={each}" for name, each in price.items())
    return None if price is None else str(price)


def _check_words(option: str, word: str | None, known: Sequence[str] | Mapping[str, str]) -> None:
    if word is not None and word not in known:
        raise InputError(f"{option}={word!r}: choose one of {', '.join(known)}")


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"{name}={count!r}: give an integer, 1 or more")


def _check_optimizer(optimizer: str) -> None:
    from ..updates.catalogue import OPTIMIZERS

    _check_words("optimizer", optimizer, [*OPTIMIZERS, "none"])


def _check_model(model: object) -> None:
    from torch import nn

    if isinstance(model, nn.Module):
        raise InputError(
            f"the model is a {type(model).__name__}: give a function that builds it and an example batch, "
            "like lambda batch=1: (Net(), (torch.ones(batch, 3, 224, 224),), loss_fn)"
        )
    if not callable(model) and not isinstance(model, str | PathLike):
        raise InputError(f"the model is a {type(model).__name__}: give a file, or a function that builds it")
