"""`plan profile`: a model traced and measured, as a graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..graphs.files.files import save_graph
from ..graphs.graph import Graph
from ..graphs.machines.presets import Preset
from ..graphs.units import duration
from ..planner.baseline import baseline
from ..planner.budget import spelled
from .gpu_options import chosen_preset, host_options
from .known_names import completing, machines
from .models import model_code
from .optimizer_options import chosen, optimizer_options
from .options import destination_option, output_options
from .printing.figures import graph_row
from .printing.output import Output, Row, labelled
from .printing.output_files import destination_of, write_out

if TYPE_CHECKING:
    from ..runtime.updates.choice import Choice


@click.command()
@click.argument("model", metavar="MODEL.py[:ENTRY]")
@destination_option("MODEL.graph.json in the working folder")
@click.option("--device", metavar="cpu|cuda", help="Device to measure on.  [default: cpu]")
@click.option(
    "--estimate", is_flag=True, help="Measure nothing: estimate the times for --gpu, which implies it."
)
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=completing(machines),
    help="GPU to estimate for, like rtx3060 or a100, or a machine file that describes it.  [default: "
    "none, times are measured]",
)
@host_options
@click.option("--compile", "compiling", is_flag=True, help="Fuse operations by Inductor if that is faster.")
@optimizer_options
@output_options
def profile(
    model: str,
    destination: Path | None,
    device: str | None,
    estimate: bool,
    gpu: str | None,
    host: str | None,
    lanes: str | None,
    compiling: bool,
    output: Output,
    **optimizer: Any,
) -> None:
    """Trace MODEL.py and measure its operations: makes a graph.

    ENTRY (default: build) is a function that returns (module, example_inputs), (module, example_inputs,
    loss_fn) or (module, example_inputs, loss_fn, targets). The file is run. Exits with code 5 if the
    traced iteration is not bitwise equal to eager over two iterations. --estimate traces without memory for
    the model, for the GPU of --gpu, which need not be here. --optimizer adds its states and the updates of
    the weights, which can also run on the CPU. --compile fuses operations: results differ from eager by
    rounding, their error against float64 is at most 4 times eager's own.

    \b
    plan profile model.py -o graph.yaml --device cuda
    plan profile model.py --gpu rtx3060 --optimizer adamw -o graph.yaml
    """
    choice = chosen(optimizer)
    if estimate and gpu is None:
        raise click.UsageError("--estimate needs --gpu NAME: the GPU to estimate for (plan machine --list)")
    if gpu and device:
        raise click.UsageError("--device is where to measure, and --gpu measures nothing: give one")
    if not gpu and (host or lanes):
        raise click.UsageError("--host and --lanes describe the machine of --gpu")
    if gpu and compiling:
        raise click.UsageError("--compile measures kernels, and --gpu measures nothing: give one")
    to = destination_of(destination, model, ".graph.json")
    if gpu:
        graph = _estimated(model, chosen_preset(gpu, host, lanes), choice, output)
    else:
        graph = _measured(model, device or "cpu", choice, output, compiling=compiling)
    written = write_out(to, partial(save_graph, graph))
    reference = baseline(graph)
    output.result(
        {
            "name": graph.name,
            "operations": len(graph.operations),
            "tensors": len(graph.tensors),
            "baseline_time": reference.time,
            "baseline_peak": reference.peak,
            "source": dict(graph.source),
            "graph": written.name,
        },
        labelled(
            [
                graph_row(graph),
                ("baseline", f"{duration(reference.time)}, peak {spelled(reference.peak)}"),
                *_source_rows(graph.source),
                *written.row(),
            ]
        ),
    )
    written.tell()


def _measured(model: str, device: str, optimizer: Choice | None, output: Output, *, compiling: bool) -> Graph:
    from ..runtime.compare.cost import below_baseline
    from ..runtime.compare.verdict import warning
    from ..runtime.profile.profile import profile as measure

    with model_code(model, device), output.progress("profiling") as progress:
        graph = measure(model, device, progress, optimizer, compiling=compiling)
    eager: Any = graph.source["eager"]
    measured: Any = graph.source["measured"]
    for line in (warning(eager), below_baseline(eager, baseline(graph).peak), measured.get("doubt")):
        if line is not None:
            output.note(f"warning: {line}")
    return graph


def _estimated(model: str, preset: Preset, optimizer: Choice | None, output: Output) -> Graph:
    from ..runtime.profile.estimate import estimate

    with model_code(model, "this machine"), output.progress("estimating") as progress:
        graph = estimate(model, preset, progress, optimizer)
    estimated: Any = graph.source["estimate"]
    for line in estimated.get("notes", ()):
        output.note(f"warning: {line}")
    return graph


def _source_rows(source: Any) -> list[Row]:
    rows = [("fingerprint", str(source.get("fingerprint", "")))]
    if measured := source.get("measured"):
        rows.append(
            (
                "measured",
                f"{measured['signatures']} distinct calls, median timing noise {measured['spread']:.1%}",
            )
        )
    if (groups := source.get("compiled")) is not None:
        exact = f"error {source['accuracy']:.2f} of eager's own"
        rows.append(("compiled", f"{sum(map(len, groups.values()))} operations in {len(groups)}, {exact}"))
    if estimated := source.get("estimate"):
        rows.append(("estimated", f"for {estimated['gpu']}, by the roofline ({estimated['data']})"))
    if eager := source.get("eager"):
        equal = "equal within its own spread" if eager.get("spread") else "bitwise equal"
        what = "weights, states and buffers" if source.get("optimizer") else "gradients and buffers"
        rows.append(
            ("eager", f"losses, {what} of 3 iterations {equal if eager['equal'] else 'not compared'}")
        )
        if "peak" in eager:
            rows.append(("eager takes", f"{duration(eager['seconds'])}, peak {spelled(eager['peak'])}"))
    return rows
