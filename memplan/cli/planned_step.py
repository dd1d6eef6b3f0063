"""The planned step of a schedule and a model file, and the options that choose it, for run and train."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..graphs.errors import InputError, MismatchError
from ..graphs.graph import Graph
from .models import model_code
from .options import FILE, device_option, graph_option
from .parameter_types import DOCUMENT
from .printing.live import Live
from .printing.output import Output
from .replay import Held

if TYPE_CHECKING:
    from ..model.file import ModelFile
    from ..model.iteration import Iteration
    from ..planner.addresses.layout import Layout
    from ..profiling.compare.compiled import Compiled
    from ..program.program import Program
    from ..steps.execute import PlannedStep


class Planned(NamedTuple):
    """A model file and its planned step.

    iteration: the one that the file builds.
    live: the line that is shown.
    compiled: the reference for the step's compiled operations; None without such operations.
    """

    file: ModelFile
    iteration: Iteration
    step: PlannedStep
    live: Live
    compiled: Compiled | None


def step_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the schedule, its graph, the model file and where it runs to a command."""
    for option in (
        click.option(
            "--cuda-graph",
            "cuda_graph",
            is_flag=True,
            help="Replay the iteration as a CUDA graph: for schedules without transfers, with updates in "
            "them.",
        ),
        click.option(
            "--disk",
            type=FILE,
            metavar="FOLDER",
            help="Folder for what is offloaded to the disk.  [default: where temporary files are]",
        ),
        device_option("Device to run on.  [default: where the graph was profiled]"),
        click.option(
            "--model", metavar="MODEL.py[:ENTRY]", help="File of the model; it is run.", required=True
        ),
        graph_option,
        click.argument("schedule", type=DOCUMENT),
    ):
        command = option(command)
    return command


@contextmanager
def planned_step(
    held: Held,
    model: str,
    device: str | None,
    disk: Path | None,
    layout: Layout | None,
    output: Output,
    *,
    cuda_graph: bool,
) -> Generator[Planned]:
    """Build the model and its planned step; the model's code may run in the block."""
    from ..devices.device.choice import check_device, device_of
    from ..model.file import load_model_file
    from ..model.iteration import on_device
    from ..profiling.fusion.choice import COMPILED
    from ..runtime.run.cycle import Terms
    from ..steps.execute import PlannedStep
    from ..tracing.output_layouts import trace_real_layouts
    from ..updates.choice import choice_of, updated

    graph_path = held.graph_path
    # The user's device first: its error comes before the graph's.
    if device is not None:
        check_device(device)
    device = _device(held.graph, graph_path, device)
    check_device(device)
    with model_code(model, device), output.live("tracing") as live:
        chosen = held.graph.source.get("optimizer")
        file = load_model_file(model)
        iteration = on_device(file.build(), device)
        iteration = updated(iteration, None if chosen is None else choice_of(chosen))
        program = trace_real_layouts(iteration)
        where = device_of(program.device)
        _same_model(held.graph, graph_path, program.fingerprint, model, where.capability())
        if line := other_card(held.graph, where.surroundings()):
            output.note(line)
        if COMPILED in held.graph.source:
            live.report("compiling operations")
        planned, compiled = _aligned(program, held.graph, graph_path)
        terms = Terms(held.graph, held.budget, held.machine, disk, layout=layout)
        step = PlannedStep(iteration, planned, held.file.schedule, terms, cuda_graph=cuda_graph)
        yield Planned(file, iteration, step, live, compiled)


def _device(graph: Graph, graph_path: Path, wanted: str | None) -> str:
    """Return the device to run on. A graph holds for the kind of device it was traced on."""
    if not graph.source.get("fingerprint"):
        raise InputError(f"{graph_path} has no fingerprint: it was not made by `plan profile`")
    traced = str(graph.source.get("device", "cpu"))
    device = wanted or traced
    # By kind: cuda:1 runs what was traced on cuda:0.
    if device.partition(":")[0] != traced.partition(":")[0]:
        made = f"was estimated for {gpu}" if (gpu := _estimated_for(graph)) else f"was traced on {traced}"
        raise MismatchError(f"{graph_path} {made}, not on {device}: profile the model there")
    return device


def _estimated_for(graph: Graph) -> str | None:
    """Return the name of the GPU that an estimate is for."""
    return _known(graph).get("gpu")


def _known(graph: Graph) -> dict[str, Any]:
    """Return what the graph says of its GPU: in the estimate, or in the profile."""
    estimated: Any = graph.source.get("estimate")
    return dict(estimated if isinstance(estimated, dict) else graph.source)  # pyright: ignore[reportUnknownArgumentType]


def _same_model(graph: Graph, graph_path: Path, fingerprint: str, model: str, capability: str | None) -> None:
    """Raise MismatchError if the graph is not of this trace.

    capability: compute capability of the device, by which PyTorch chooses operations; None without one.
    """
    import torch

    expected = str(graph.source["fingerprint"])
    if expected == fingerprint:
        return
    made_for = _known(graph).get("capability")
    if made_for is not None and capability is not None and str(made_for) != capability:
        raise MismatchError(
            f"{graph_path} has the operations of compute capability {made_for}, this GPU has {capability} "
            "and runs others: profile the model here"
        )
    then = graph.source.get("torch")
    versions = f" (torch was {then} then and is {torch.__version__} now)" if then != torch.__version__ else ""
    raise MismatchError(
        f"{model} is not the model that {graph_path} was profiled from: its fingerprint is "
        f"{_short(fingerprint)}, the graph's {_short(expected)}{versions}"
    )


def other_card(graph: Graph, here: dict[str, Any]) -> str | None:
    """Return a line for the user if the graph's times are of another card, driver, or flags of PyTorch.

    Results are right nevertheless: the operations are those of the trace made here.
    """
    from ..devices.device.card import differences

    measured: Any = graph.source.get("card")
    found = differences(measured, here) if isinstance(measured, dict) else None  # pyright: ignore[reportUnknownArgumentType]
    return found and f"warning: the graph was measured with {found}: times may differ from those planned"


def _aligned(program: Program, graph: Graph, graph_path: Path) -> tuple[Program, Compiled | None]:
    from ..profiling.compare.compiled import compiled_as_in
    from ..tracing.align import aligned

    try:
        made, compiled = compiled_as_in(graph, program)
        return aligned(made, graph), compiled
    except MismatchError as error:
        raise MismatchError(f"{graph_path}: {error}") from None


def _short(fingerprint: str) -> str:
    return f"{fingerprint.removeprefix('sha256:')[:12]}…"
