"""PyTorch's joint FX graphs, as `torch.export.save` writes them. profiling/exported reads them."""

from __future__ import annotations

from pathlib import Path

from ..graphs.errors import InputError
from ..graphs.graph import Graph
from ..profiling.exported.exported import read_export
from .formats import Options


def read(path: Path, options: Options) -> Graph:
    """Return the graph of an exported program, with estimated times. Raises ValueError or InputError."""
    if options.gpu is None:
        raise InputError("an exported program has no times: --gpu NAME says for which GPU to estimate them")
    return read_export(path, options.gpu)
