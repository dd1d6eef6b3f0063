"""What the three chapters of Zhao's thesis (2024, tel-04890912) need: graphs, budgets, one solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.instances.models import MODELS
from memplan.instances.training import Rates, Training
from memplan.instances.transformer import transformer
from memplan.planner.baseline import baseline
from memplan.planner.budget import parse_budget
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry import run as registry

GRAPHS = Path(__file__).resolve().parents[2] / "instances" / "public" / "models"
GPUS = {"P100": Rates(9.3e12, 1e12, 1e9, 732e9), "V100": Rates(14e12, 1e12, 1e9, 900e9)}
"""Float32 and memory of the data sheets; nothing is updated."""


def graph_named(name: str) -> Graph:
    """Of instances/public/models."""
    return load_graph(GRAPHS / f"{name}.json.gz")


def gpt2(size: str, layers: int, gpu: str, batch: int, length: int) -> Graph:
    """GPT-2 of a size with so many layers, in float32, without updates; attention keeps its scores.

    A vocabulary of one row a hidden element: the head of language models is no part of the thesis' GPT-2,
    at half of whose activations it alone would not fit.
    """
    given = MODELS["gpt2" if size == "small" else f"gpt2-{size}"]
    model = replace(given, name=f"{given.name}-{layers}", layers=layers, vocabulary=given.hidden)
    training = Training(batch, length, 4, 4, optimizer="none", granularity="operation", keep_scores=True)
    return transformer(model, training, GPUS[gpu])


def overheads(
    graph: Graph, percent: float, solvers: Mapping[str, Mapping[str, str]], seconds: float
) -> dict[str, str | float]:
    """Per cent above the plain time and seconds of solving, within a share of the activations.

    solvers: with settings; a solver that has no schedule gets "none".
    """
    plain = baseline(graph)
    budget = parse_budget(f"{percent:g}%a").bytes_of(plain.peak, graph.resident_bytes)
    values: dict[str, str | float] = {}
    for solver, settings in solvers.items():
        try:
            found = registry.solve(solver, Problem(graph, budget), seconds, settings, bound_seconds=0.0)
        except InfeasibleError:
            values[f"{solver}, %"] = "none"
            continue
        values[f"{solver}, %"] = round(100 * (found.figures.time / plain.time - 1), 2)
        values[f"{solver}, solve s"] = round(found.seconds, 1)
    return values
