"""The formats by name: which module reads and writes each, and which options it takes. See docs/imports.md.

A format is a module of this folder with

    read(path, options) -> Graph                     raises ValueError or InputError; only if `reads`
    write(graph, path, options) -> list[str]         what got lost; only if `writes`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..graphs.errors import InputError
from ..graphs.files.fields import twice
from ..graphs.files.validate import validate
from ..graphs.graph import Graph
from ..graphs.machines.presets import Preset


@dataclass(frozen=True)
class Format:
    """A file format.

    about: a line for --help.
    reads, writes: whether `plan import` and `plan export` have it.
    takes: the fields of `Options` that it uses.
    """

    about: str
    reads: bool = True
    writes: bool = False
    takes: frozenset[str] = frozenset()


FORMATS = {
    "moccasin": Format(
        "MOCCASIN's instances: networkx's node-link JSON with a time and a size a node",
        writes=True,
        takes=frozenset({"time_unit"}),
    ),
    "checkmate": Format(
        "Checkmate's graphs: a pickled DFGraph, or a dict of its arguments",
        writes=True,
        takes=frozenset({"time_unit"}),
    ),
    "snapshot": Format("PyTorch's CUDA memory snapshots: measured life spans", takes=frozenset({"device"})),
    "rkgb": Format("Rockmate's graphs: a pickle of rkgb's result, or of its forward and backward graph"),
    "onnx": Format("ONNX training graphs, as onnxruntime's artifacts", takes=frozenset({"gpu", "dims"})),
    "dtr": Format(
        "DTR's logs of a traced iteration, as its simulator reads them", takes=frozenset({"time_unit"})
    ),
    "minimalloc": Format(
        "MiniMalloc's tables: buffers with lifetimes, to find addresses for", takes=frozenset({"time_unit"})
    ),
    "fx": Format("PyTorch's joint FX graphs, saved by torch.export.save (.pt2)", takes=frozenset({"gpu"})),
}


@dataclass(frozen=True)
class Options:
    """Options of reading and writing.

    time_unit: seconds per unit of the file's times; None: the format's own default.
    device: number of the device, in a file with several.
    gpu: the machine, or its name, for whose GPU times are estimated.
    dims: sizes of the dimensions that a file only names, above 0.
    lossy: whether to write although the format can't hold all of the graph.
    """

    time_unit: float | None = None
    device: int | None = None
    gpu: str | Preset | None = None
    dims: Mapping[str, int] | None = None
    lossy: bool = False


FLAGS = {"time_unit": "--time-unit", "device": "--device", "gpu": "--gpu", "dims": "--dim"}


def read(name: str, path: Path, options: Options) -> Graph:
    """Return the graph in a file of that format, validated.

    Raises InputError, one line with file and error.
    """
    if not FORMATS[name].reads:
        raise InputError(f"files in the format {name} are written, not read")
    _only_what_it_takes(name, options)
    try:
        graph = _module(name).read(path, options)
        validate(graph)
        for kind, names in (("operations", graph.operations.name), ("tensors", graph.tensors.name)):
            if len({*names}) < len(names):  # else a graph file of it could not be read
                raise ValueError(f"two {kind} have the name {twice(names)!r}")
        return graph
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def write(name: str, graph: Graph, path: Path, options: Options) -> list[str]:
    """Write the graph in that format and return what is lost, a line each.

    Raises InputError if anything is lost and `options` do not allow it.
    """
    _only_what_it_takes(name, options)
    return _module(name).write(graph, path, options)


def _module(name: str) -> Any:
    # Only the one that is used: some import large packages.
    return import_module(f".{name}", __package__)


def _only_what_it_takes(name: str, options: Options) -> None:
    for field, flag in FLAGS.items():
        if getattr(options, field) is not None and field not in FORMATS[name].takes:
            takers = [other for other, one in FORMATS.items() if field in one.takes]
            raise InputError(f"{flag} is not for {name}: it is for {', '.join(takers)}")
