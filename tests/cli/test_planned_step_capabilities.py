"""Graphs of one GPU on another, refused by what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from memplan.cli.planned_step import _device, _same_model
from memplan.graphs.errors import MismatchError
from memplan.graphs.graph import Graph
from small_graphs import small_graph

PATH = Path("graph.yaml")


def graph_of(**source: Any) -> Graph:
    return replace(small_graph(Random(0)), source={"fingerprint": "sha256:aa", **source})


@pytest.mark.parametrize(
    "source", [{"capability": "8.6"}, {"estimate": {"gpu": "RTX 3060", "capability": "8.6"}}]
)
def test_another_compute_capability_is_named(source: dict[str, Any]) -> None:
    with pytest.raises(MismatchError, match=r"compute capability 8\.6, this GPU has 9\.0"):
        _same_model(graph_of(**source), PATH, "sha256:bb", "model.py", "9.0")
    with pytest.raises(MismatchError, match="is not the model"):
        _same_model(graph_of(**source), PATH, "sha256:bb", "model.py", "8.6")
    _same_model(graph_of(**source), PATH, "sha256:aa", "model.py", "9.0")  # all operations are the same


def test_an_estimate_is_not_run_on_the_cpu() -> None:
    graph = graph_of(device="cuda:0", estimate={"gpu": "RTX 3060", "capability": "8.6"})
    with pytest.raises(
        MismatchError, match="was estimated for RTX 3060, not on cpu: profile the model there"
    ):
        _device(graph, PATH, "cpu")
    with pytest.raises(MismatchError, match="was traced on cpu, not on cuda"):
        _device(graph_of(device="cpu"), PATH, "cuda")
