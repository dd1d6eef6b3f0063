"""Graph files: read and validated, written, and told apart by their content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .documents import read_document, write_document
from .graph import Graph
from .read_graph import graph_from_document
from .write_graph import graph_to_document


def load_graph(path: str | Path) -> Graph:
    """Read a plan-graph/1. Raises InputError: one line with the file, the place and the fault."""
    path = Path(path)
    return graph_from_document(read_document(path), str(path))


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write a plan-graph/1 in the format of the suffix; the same graph gives the same bytes."""
    write_document(graph_to_document(graph), Path(path))


def graph_digest(graph: Graph) -> str:
    """SHA-256 of what a schedule depends on: tensors, operations and results, not source or machine.

    The same whether the graph is kept as JSON or YAML.
    """
    document = graph_to_document(graph)
    content = [document[part] for part in ("tensors", "operations", "results")]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
