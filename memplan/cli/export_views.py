"""Files that show a schedule in other tools: traces, tables."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import click

from ..graphs.errors import InputError
from ..graphs.files.documents import write_whole
from ..planner.simulator.simulate import Replay
from ..report.subject import Subject
from ..report.traces.chrome import chrome
from ..report.traces.events import Trace
from ..report.traces.perfetto import perfetto
from .options import FILE, writable_as
from .replay import Held

TRACES: dict[str, Callable[[Trace], bytes]] = {".pftrace": perfetto, ".json": chrome}

trace_option = click.option(
    "--trace",
    "trace_path",
    type=FILE,
    callback=writable_as(*TRACES, packed=True),
    help="File for ui.perfetto.dev: .pftrace, or Chrome's .json; .gz may follow.  [default: none]",
)


def subject_of(held: Held, replay: Replay) -> Subject:
    addresses = held.file.addresses
    arena = None if addresses is None else addresses.arena
    return Subject(
        graph=held.graph,
        schedule=held.file.schedule,
        report=held.report(replay),
        budget=held.budget,
        machine=held.machine,
        arena=arena,
    )


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in the format of the path's suffix. Raises InputError."""
    packed = path.suffix == ".gz"
    data = TRACES[Path(path.stem).suffix if packed else path.suffix](trace)
    # mtime=0: the same schedule gives the same bytes.
    write_view(gzip.compress(data, mtime=0) if packed else data, path)


def write_view(data: bytes, path: Path) -> None:
    """Write a file. Raises InputError."""
    try:
        write_whole(data, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
