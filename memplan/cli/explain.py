"""`plan explain`: who owns the memory's peak in a recording of PyTorch or XLA, and what a plan could save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..exchange.recorded.owners import OFFLOADABLE, OUTPUTS, RECOMPUTABLE, Owner, kinds, lines, modules
from ..exchange.recorded.read import read_recording
from ..exchange.recorded.recording import XLA, Recording
from ..graphs.errors import InputError
from ..graphs.units import format_bytes
from ..planner.budget import spelled
from .help import PlanCommand
from .options import FILE, output_options
from .printing.output import Output, Row, labelled, table

_MOST = 10
"""Lines and modules that are shown."""
_NOTABLE = 0.05
"""Share of the peak above which outputs are worth a word."""
_FRAGMENTED = 0.1
"""Share of the reserved bytes above which unused ones are worth a word."""


@click.command(cls=PlanCommand)
@click.argument("file", type=FILE)
@click.option(
    "--device", type=int, help="Number of the GPU, if FILE has several.  [default: that with the most memory]"
)
@output_options
def explain(file: Path, device: int | None, output: Output) -> None:
    """Say who owns the peak of FILE, a recording of memory of PyTorch or XLA, and what a plan could save.

    FILE is a snapshot (torch.cuda.memory._dump_snapshot, after _record_memory_history), a trace of
    torch.profiler with profile_memory=True, or a buffer assignment that XLA writes with
    XLA_FLAGS=--xla_dump_to=FOLDER. with_stack=True adds lines and modules to a trace. A snapshot is a
    pickle: it is read without executing anything.

    \b
    plan explain snapshot.pickle
    plan explain trace.json.gz --device 1
    plan explain module_0005.jit_step.cpu_after_optimizations-buffer-assignment.txt
    """
    recording = read_recording(file, device)
    if not recording.peak:
        raise InputError(f"{file}: nothing is allocated in it")
    by_kind = kinds(recording)
    output.result(_document(recording, by_kind), _lines(recording, by_kind))


def _share(by_kind: Sequence[Owner], of: Sequence[str]) -> int:
    return sum(one.size for one in by_kind if one.name in of)


def _document(recording: Recording, by_kind: Sequence[Owner]) -> dict[str, Any]:
    def rows(owners: Sequence[Owner]) -> list[dict[str, Any]]:
        return [
            {"name": one.name, "bytes": one.size, "blocks": one.blocks, "kind": one.kind} for one in owners
        ]

    return {
        "source": recording.source,
        "device": recording.device,
        "peak": recording.peak,
        "reserved": recording.reserved,
        "failed_allocation": recording.oom,
        "kinds": [{"name": one.name, "bytes": one.size, "blocks": one.blocks} for one in by_kind],
        "lines": rows(lines(recording)),
        "modules": rows(modules(recording)),
        "recomputable": _share(by_kind, RECOMPUTABLE),
        "offloadable": _share(by_kind, OFFLOADABLE),
    }


def _lines(recording: Recording, by_kind: Sequence[Owner]) -> Iterator[Text]:
    yield from labelled(_facts(recording))
    yield from _table(recording, by_kind, "kind")
    for title, owners in (("line of code", lines(recording)), ("module", modules(recording))):
        if owners:
            yield Text("")
            yield from _table(recording, owners[:_MOST], title)
    yield Text("")
    yield from labelled(_advice(recording, by_kind))


def _facts(recording: Recording) -> Iterator[Row]:
    blocks = sum(1 for _one in recording.at_peak())
    where = "of" if recording.source == XLA else "on"
    yield "peak", f"{spelled(recording.peak)} {where} {recording.device}, in {blocks:,} blocks"
    if recording.oom is not None:
        yield "out of memory", f"an allocation of {spelled(recording.oom)} failed"
    unused = (recording.reserved or 0) - recording.peak
    if recording.reserved is not None and unused > _FRAGMENTED * recording.reserved:
        yield (
            "reserved",
            (
                f"{format_bytes(recording.reserved)}, {format_bytes(unused)} more than the peak: "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may use it"
            ),
        )


def _table(recording: Recording, owners: Sequence[Owner], title: str) -> Iterator[Text]:
    kind = title != "kind"
    heads = ["bytes", "share", "blocks", *(["most of it"] if kind else []), title]
    rows = [
        [
            format_bytes(one.size),
            f"{one.size / recording.peak:.0%}",
            f"{one.blocks:,}",
            *([one.kind] if kind else []),
            one.name,
        ]
        for one in owners
    ]
    yield from table(heads, rows)


def _advice(recording: Recording, by_kind: Sequence[Owner]) -> Iterator[Row]:
    """Yield what a plan can save at most, and the next command."""
    peak = recording.peak
    recomputed, offloaded = _share(by_kind, RECOMPUTABLE), _share(by_kind, OFFLOADABLE)
    if recomputed:
        most = f"{format_bytes(recomputed)}: at most {recomputed / peak:.0%} less"
        yield "a plan", f"can recompute or offload activations, {most}"
    if offloaded > recomputed:
        more = format_bytes(offloaded - recomputed)
        yield "with a host", f"{more} of weights and optimizer states can be offloaded in addition"
    if not offloaded and recording.source == XLA:
        yield "a plan", "what it could save is unknown: no name of the program says what the values are"
    elif not offloaded:
        yield "a plan", "what it could save is unknown: no stack says what the blocks are"
    outputs = _share(by_kind, [OUTPUTS])
    if outputs > _NOTABLE * peak:
        donated = "take no parameter's bytes: jax.jit(…, donate_argnums=…) lets them"
        yield "outputs", f"{format_bytes(outputs)} {donated}"
    # Half of what can be saved at most: a budget that a plan reaches without much recomputation.
    percent = max(1, round(100 * (1 - max(recomputed, offloaded / 2) / peak / 2)))
    what = "model.py builds the model: docs/models.md"
    if recording.source == XLA:
        what = f"{what}; of PyTorch/XLA, JAX has jax.checkpoint"
    yield "next", f"plan optimize model.py --budget {percent}%    ({what})"
    if recording.source != XLA:
        yield "in Python", f'step = memplan.optimize(model, inputs, budget="{percent}%")'
