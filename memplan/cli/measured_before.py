"""The graph of an earlier run, if it is of the same operations on the same device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..graphs.errors import InputError
from ..graphs.files.files import load_graph
from ..graphs.graph import Graph
from .models import model_code
from .planned_step import other_card
from .printing.output import Output
from .profiling import Measurement, asked_exactly, asked_within


def graph_measured_before(path: Path, model: str, measurement: Measurement, output: Output) -> Graph | None:
    """Return the graph in the file; None if there is no file, or if it is not of this model and device.

    The model is traced to compare fingerprints, and nothing is measured. A note says why a file is not used.
    """
    if not path.is_file():
        return None
    with model_code(model, measurement.device), output.status("tracing"):
        found = _current(path, model, measurement)
    if isinstance(found, str):
        output.note(f"{path}: {found}: measured anew")
        return None
    output.note(f"{path}: measured before, and the model is the same (--remeasure measures it anew)")
    measured: Any = found.source["measured"]
    if measured.get("doubt") is not None:
        output.note(f"warning: {measured['doubt']}")
    return found


def _current(path: Path, model: str, measurement: Measurement) -> Graph | str:
    """Return the graph, or why it is not used."""
    import torch

    from ..devices.device.choice import device_of
    from ..profiling.fusion.choice import COMPILED
    from ..profiling.profile.profile import traced
    from ..updates.choice import choice_of

    try:
        graph = load_graph(path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    source: Any = graph.source
    if "measured" not in source:
        return "it was not measured"
    optimizer = source.get("optimizer")
    for what, then, now in (
        ("device", source.get("device"), measurement.device),
        ("PyTorch", source.get("torch"), torch.__version__),
        ("number of threads", source.get("threads"), torch.get_num_threads()),
        ("optimizer", None if optimizer is None else choice_of(optimizer), measurement.optimizer),
        ("--compile", COMPILED in source, measurement.compiling),
        ("--split", asked_within(source), measurement.within and measurement.within.text),
        ("--split-exact", asked_exactly(source), measurement.exact),
    ):
        if then != now:
            return f"measured with another {what}"
    # Last: a trace takes seconds, the other checks none.
    _iteration, program = traced(model, measurement.device, measurement.optimizer)
    if program.fingerprint != source.get("fingerprint"):
        return "the model has changed"
    return other_card(graph, device_of(program.device).surroundings()) or graph
