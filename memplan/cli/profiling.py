"""A graph made of a model file as a command's options ask: measured on a device, or estimated for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ..graphs.graph import Graph
from ..graphs.machines.presets import Preset, described_preset
from ..graphs.units import duration
from ..planner.baseline import baseline
from ..planner.budget import Budget, spelled
from .gpu_options import host_options
from .known_names import completing, machines
from .models import model_code
from .optimizer_options import OPTIMIZER_KEYS, chosen, optimizer_options
from .options import device_option
from .printing.output import Output, Row

if TYPE_CHECKING:
    from ..profiling.profile.profile import Profile
    from ..updates.choice import OptimizerChoice


@dataclass(frozen=True)
class Measurement:
    """Choices of a command's options for making a graph.

    preset: the GPU to estimate for; None to measure on `device`.
    compiling: whether operations are fused.
    within: budget for which operations run in pieces; None for whole ones.
    exact: only in pieces that have the bits of the whole.
    """

    device: str
    preset: Preset | None
    compiling: bool
    optimizer: OptimizerChoice | None
    within: Budget | None = None
    exact: bool = False

    @property
    def whole(self) -> bool:
        """Whether operations are measured as they are, so that they could be in pieces too."""
        return self.within is None and self.preset is None and not self.compiling


def measurement_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the device, the GPU and the optimizer to a command, which gets a `measurement`."""

    @wraps(function)
    def command(
        *args: Any,
        device: str | None,
        estimate: bool,
        gpu: str | None,
        host: str | None,
        lanes: str | None,
        compiling: bool,
        **options: Any,
    ) -> None:
        choice = chosen({name: options.pop(name) for name in OPTIMIZER_KEYS})
        if estimate and gpu is None:
            raise click.UsageError(
                "--estimate needs --gpu NAME: the GPU to estimate for (plan machine --list)"
            )
        if gpu and device:
            raise click.UsageError("--device is where to measure, and --gpu measures nothing: give one")
        if not gpu and (host or lanes):
            raise click.UsageError("--host and --lanes describe the machine of --gpu")
        if gpu and compiling:
            raise click.UsageError("--compile measures kernels, and --gpu measures nothing: give one")
        preset = described_preset(gpu, host, lanes) if gpu else None
        # The option has no default, so that --device cpu together with --gpu is refused.
        function(*args, measurement=Measurement(device or "cpu", preset, compiling, choice), **options)

    made: Callable[..., None] = command
    for option in (
        optimizer_options,
        click.option(
            "--compile", "compiling", is_flag=True, help="Fuse operations by Inductor if that is faster."
        ),
        host_options("memory without limit"),
        click.option(
            "--gpu",
            metavar="NAME",
            shell_complete=completing(machines),
            help="GPU to estimate for, like rtx3060 or a100, or a machine file that describes it.  [default: "
            "none, times are measured]",
        ),
        click.option(
            "--estimate",
            is_flag=True,
            help="Measure nothing: estimate the times for --gpu, which implies it.",
        ),
        device_option("Device to measure on.  [default: cpu]"),
    ):
        made = option(made)
    return made


def in_pieces(measurement: Measurement, split: Budget | None, split_exact: Budget | None) -> Measurement:
    """Return the choices with operations in pieces for a budget, None for whole ones. Raises UsageError.

    split_exact: only in pieces that have the bits of the whole.
    """
    if split is not None and split_exact is not None:
        raise click.UsageError("--split and --split-exact are two ways to run operations in pieces: give one")
    budget = split or split_exact
    if budget is not None and measurement.compiling:
        raise click.UsageError("--split and --compile are not measured together: give one")
    if budget is not None and measurement.preset is not None:
        raise click.UsageError("--split measures pieces, and --gpu measures nothing: give one")
    return replace(measurement, within=budget, exact=split_exact is not None)


def asked_exactly(source: Any) -> bool:
    """Tell whether a graph was asked for with pieces that have the bits of the whole."""
    found = source.get("within")
    # A graph file is anyone's: what is not as memplan writes it counts as absent.
    return isinstance(found, dict) and found.get("exact") is True  # pyright: ignore


def asked_within(source: Any) -> str | None:
    """Return that budget as it was asked for; None if there is none, or not as it is written."""
    found = source.get("within")
    known = isinstance(found, dict) and isinstance(found.get("bytes"), int)  # pyright: ignore
    return found.get("budget") if known else None  # pyright: ignore


def make_graph(model: str, measurement: Measurement, output: Output) -> Graph:
    """Trace a model file and measure or estimate its operations. Raises MemplanError, one line."""
    if measurement.preset is not None:
        return _estimated(model, measurement.preset, measurement.optimizer, output)
    return _measured(model, measurement, output)


def _measured(model: str, measurement: Measurement, output: Output) -> Graph:
    # Not at the top: torch takes seconds to load, and `--help` needs none of it.
    from ..profiling.profile.profile import profile as measure

    with model_code(model, measurement.device), output.progress("profiling") as progress:
        graph = measure(
            model,
            measurement.device,
            progress,
            measurement.optimizer,
            compiling=measurement.compiling,
            within=measurement.within,
            exact=measurement.exact,
        )
    _warn(graph, output)
    return graph


def profile_of(model: str, measurement: Measurement, output: Output) -> Profile:
    """Trace a model file and measure its operations as a whole. Raises MemplanError, one line."""
    from ..profiling.profile.profile import profiled

    with model_code(model, measurement.device), output.progress("profiling") as progress:
        found = profiled(model, measurement.device, progress, measurement.optimizer)
    _warn(found.graph, output)
    return found


def _warn(graph: Graph, output: Output) -> None:
    """Print what makes the graph's figures doubtful."""
    from ..profiling.compare.cost import below_baseline
    from ..profiling.compare.verdict import warning

    eager: Any = graph.source["eager"]
    measured: Any = graph.source["measured"]
    for line in (warning(eager), below_baseline(eager, baseline(graph).peak), measured.get("doubt")):
        if line is not None:
            output.note(f"warning: {line}")


def _estimated(model: str, preset: Preset, optimizer: OptimizerChoice | None, output: Output) -> Graph:
    from ..profiling.profile.estimate import estimate

    with model_code(model, "this machine"), output.progress("estimating") as progress:
        graph = estimate(model, preset, progress, optimizer)
    estimated: Any = graph.source["estimate"]
    for line in estimated.get("notes", ()):
        output.note(f"warning: {line}")
    return graph


def pieces_rows(source: Any) -> list[Row]:
    """Return the row on what runs in pieces; none for a graph that was not asked for with pieces."""
    if (regions := source.get("split")) is not None:
        exact = "bit by bit as the whole"
        if "accuracy" in source:
            exact = f"error {source['accuracy']:.2f} of eager's own"
        count = sum(len(region["operations"]) for region in regions.values())
        pieces = " and ".join(str(region["pieces"]) for region in regions.values())
        where = "a region" if len(regions) == 1 else f"{len(regions)} regions"
        return [("in pieces", f"{count} operations in {where} of {pieces} pieces, {exact}")]
    if (asked := asked_within(source)) is not None:
        return [("in pieces", f"none: for {asked} it is of no use, or what needs most does not split")]
    return []


def source_rows(source: Any) -> list[Row]:
    """Return the rows on where the graph's figures come from."""
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
    rows += pieces_rows(source)
    if estimated := source.get("estimate"):
        rows.append(("estimated", f"for {estimated['gpu']}, by the roofline ({estimated['data']})"))
    if eager := source.get("eager"):
        # A spread is there if eager PyTorch differs from itself, by atomic additions for example.
        equal = "equal within its own spread" if eager.get("spread") else "bitwise equal"
        what = "weights, states and buffers" if source.get("optimizer") else "gradients and buffers"
        rows.append(
            ("eager", f"losses, {what} of 3 iterations {equal if eager['equal'] else 'not compared'}")
        )
        if "peak" in eager:
            rows.append(("eager takes", f"{duration(eager['seconds'])}, peak {spelled(eager['peak'])}"))
    return rows
