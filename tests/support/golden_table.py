"""The golden table: what every solver answers on small instances, and every lower bound.

    python tests/support/golden_table.py          records it again, all of it, on purpose
    python tests/support/golden_table.py rotor    records the rows of this solver only

Times and sizes are small whole numbers, and the links' rates powers of two: sums are exact, and no machine's
rounding decides between two schedules. The clock stands still, so no limit in seconds can bite: limits are
moves, rounds, nodes, or the end of the search.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from math import isclose
from pathlib import Path
from random import Random

import numpy as np
import pytest
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory, time_bound
from memplan.planner.schedule.schedule import Schedule
from memplan.solvers.auto import auto
from memplan.solvers.bounds.offload.offload_bound import moves, offload_bound, weight_offload_bound
from memplan.solvers.bounds.residency.residency import free_order_bound, residency_bound
from memplan.solvers.bounds.residency.schedule import residency_schedule
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry
from small_graphs import small_graph
from small_offload import small_training
from training_graphs import training

FOLDER = Path(__file__).parents[1] / "golden"

BOUNDS = "bounds"
"""The file of the lower bounds, beside those of the solvers."""

SHARES = {"low": 0.2, "middle": 0.5, "high": 0.8}
"""Of what lies between the floor and the plain peak."""

SETTINGS = {
    "auto": {"gap": "0", "moves": "20", "workers": "1"},
    "search": {"moves": "20"},
    "joint": {"moves": "5"},
    "offload-greedy": {"moves": "2000"},
    "paged-optimizer": {"smallest": "0"},
    "moccasin": {"threads": "1"},
    "rockmate": {"peaks": "2", "saves": "2"},
    "h-ilp": {"cache": "off"},
    "hiremate": {"cache": "off", "partitioner": "sequential"},
}

LEFT_OUT = {
    "auto": (
        ("moving", "layers", "moving-chain"),
        "with links its lines are processes with limits in seconds",
    ),
    "moccasin": (("small", "unet", "training", "moving", "layers", "moving-chain"), "2 s a process"),
}
"""Instances that a solver is not asked, and why. Those that move data are not asked for one without links."""

WITHOUT_PROGRAMS = (
    "store-all",
    "layer-checkpoint",
    "torch-partitioner",
    "chen-sqrt",
    "revolve",
    "rotor",
    "rk-rotor",
    "search",
    "tw-remat",
    "block-swap",
    "checkpoint-offload",
    "activation-offload",
    "optimizer-offload",
    "paged-optimizer",
)
"""Solvers whose answers no version of highspy or ortools changes."""


def instances() -> dict[str, tuple[Graph, Machine | None]]:
    moving = small_training(Random(1), 4, states=True, host=True, saved=True, moving=12)
    return {
        "small": (small_graph(Random(11)), None),
        "layered": (_whole(layered(14, seed=1, width=4)), None),
        "unet": (_whole(unet(2, seed=1)), None),
        "chain": (_whole(chain(6, seed=2)), None),
        "training": (training(2, 5, update="early"), None),
        "skips": (training(2, 3, skip=0.6), None),
        "moving": (moving, Machine(links=Links(2, 2, 2, 2))),
        "layers": (
            small_training(Random(4), 6, states=True, host=True, moving=20),
            Machine(links=Links(4, 2, 1, 1)),
        ),
        "moving-chain": (_whole(chain(5, seed=1)), Machine(links=Links(2**18, 2**18))),
    }


def _whole(graph: Graph) -> Graph:
    """The same graph with whole numbers of seconds."""
    operations = graph.operations
    modes = {
        o: tuple(replace(variant, time=float(round(8 * variant.time))) for variant in variants)
        for o, variants in operations.modes.items()
    }
    return replace(graph, operations=replace(operations, time=np.rint(8 * operations.time), modes=modes))


def problems(only: Collection[str] = ()) -> Iterator[tuple[str, str, Problem]]:
    """Instance, share, problem. Each has a graph of its own: nothing kept for one is found by another.

    only: instances; empty for all.
    """
    for instance in only or instances():
        for share, part in SHARES.items():
            graph, machine = instances()[instance]
            low, high = minimum_memory(graph, machine), baseline(graph).peak
            yield instance, share, Problem(graph, low + round(part * (high - low)), machine)


def solvers() -> list[str]:
    """Ours: not those of other packages that are installed."""
    return [entry.name for entry in registry.entries() if entry.module.startswith(".")]


def solver_rows(solver: str, only: Collection[str] = ()) -> list[str]:
    """For each problem what the solver answers: digest, seconds and peak, or the class of its refusal.

    only: instances; empty for all.
    """
    left_out = LEFT_OUT.get(solver, ((), ""))[0]
    needs_links = registry.entry(solver).needs_links
    return [
        f"{instance} {share}\t{_answer(solver, problem)}"
        for instance, share, problem in problems(only)
        if instance not in left_out and (moves(problem.machine) or not needs_links)
    ]


def _answer(solver: str, problem: Problem) -> str:
    try:
        found = registry.solve(solver, problem, None, SETTINGS.get(solver), bound_seconds=0)
    except InfeasibleError as refusal:
        return f"{type(refusal).__name__}\t{refusal.least}\t{refusal.min_memory}"
    except NotAcceptedError as refusal:
        return type(refusal).__name__
    assert not found.notes, found.notes
    return f"{_digest(found.schedule)}\t{found.figures.time!r}\t{found.figures.peak}"


def _digest(schedule: Schedule) -> str:
    columns = (schedule.verbs, schedule.targets, schedule.wheres)
    text = [[int(each) for each in column] for column in columns]
    initial = [sorted(schedule.initial.host), sorted(schedule.initial.disk)]
    return sha256(repr((text, initial)).encode()).hexdigest()[:16]


def bound_rows(only: Collection[str] = ()) -> list[str]:
    """For each problem the lower bounds in seconds. only: instances; empty for all."""
    return [
        f"{instance} {share}\t{bound}\t{value!r}"
        for instance, share, problem in problems(only)
        for bound, value in _bounds(problem)
    ]


def _bounds(problem: Problem) -> Iterator[tuple[str, float]]:
    graph, budget, machine = problem.graph, problem.budget, problem.machine
    yield "floor in bytes", minimum_memory(graph, machine)
    yield "operations", time_bound(graph)
    if machine is not None:
        yield "offloading", offload_bound(graph, machine, budget).seconds
        yield "any-order offloading", offload_bound(graph, machine, budget, order="any").seconds
        if len(graph.operations) <= 12:
            yield "weight-offload", weight_offload_bound(graph, machine, budget).seconds
    yield "residency", residency_bound(graph, budget).bound.seconds
    yield "any-order residency", free_order_bound(graph, budget).bound.seconds
    rounded = residency_schedule(graph, budget).schedule
    if rounded is not None:
        yield "rounded residency", rounded.time


def same(one: str, other: str) -> bool:
    """Two rows are the same; numbers at their end up to the tolerance of a solver of programs."""
    (*words, value), (*others, wanted) = one.split("\t"), other.split("\t")
    if words != others:
        return False
    try:
        return isclose(float(value), float(wanted), rel_tol=1e-6)
    except ValueError:
        return value == wanted


def freeze_the_clock(patch: pytest.MonkeyPatch) -> None:
    """For all that solvers ask: no time passes. No bound ends a race: its moment is up to the machine."""
    for entry in registry.entries():
        registry.settings_of(entry.name)  # imports it
    for name, module in list(sys.modules.items()):
        if name.startswith("memplan.solvers.") and hasattr(module, "monotonic"):
            patch.setattr(module, "monotonic", lambda: 0.0)
    patch.setattr(auto, "prove", lambda *_given: None)


def versions(name: str) -> dict[str, str]:
    """Of the packages whose others may choose another of several best answers."""
    if name in WITHOUT_PROGRAMS:
        return {}
    package = "ortools" if name == "moccasin" else "highspy"
    return {package: version(package)}


def recorded(name: str) -> tuple[dict[str, str], list[str]]:
    """The versions a file was recorded with, and its rows."""
    first, *rows = (FOLDER / f"{name}.tsv").read_text().splitlines()
    return dict(word.split("=") for word in first.removeprefix("#").split()), rows


def _record(name: str, rows: Callable[[], list[str]]) -> None:
    head = " ".join(["#", *(f"{package}={number}" for package, number in versions(name).items())])
    (FOLDER / f"{name}.tsv").write_text("\n".join([head, *rows()]) + "\n")


def _main(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        freeze_the_clock(patch)
        for name in names or [*solvers(), BOUNDS]:
            _record(name, bound_rows if name == BOUNDS else lambda name=name: solver_rows(name))


if __name__ == "__main__":
    _main(sys.argv[1:])
