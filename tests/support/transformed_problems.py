"""Transformations of a problem with a known effect on its fastest schedule, for metamorphic tests.

Factors are powers of two in the tests: then floating-point numbers scale without rounding.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Mode
from memplan.graphs.machine import Link, Links, Machine, Tier
from memplan.graphs.structure.valid_order import is_valid_order
from memplan.graphs.transformations.order import in_order
from memplan.solvers.problem import Problem


def scale_times(problem: Problem, factor: float) -> Problem:
    """Make every operation, launch and copy take `factor` times as long."""
    operations, machine = problem.graph.operations, problem.machine
    modes = {
        o: tuple(replace(mode, time=factor * mode.time, launch=factor * mode.launch) for mode in of)
        for o, of in operations.modes.items()
    }
    scaled = replace(
        operations, time=factor * operations.time, launch=factor * operations.launch, modes=modes
    )
    if machine is not None:
        links = [link and link.slowed(factor) for link in _links(machine)]
        machine = replace(machine, links=Links(*links))
    return replace(problem, graph=replace(problem.graph, operations=scaled), machine=machine)


def scale_bytes(problem: Problem, factor: int) -> Problem:
    """Multiply the sizes of tensors and workspaces, the budget, capacities and rates by `factor`."""
    graph, machine = problem.graph, problem.machine
    modes = {
        o: tuple(replace(mode, workspace=factor * mode.workspace) for mode in of)
        for o, of in graph.operations.modes.items()
    }
    operations = replace(graph.operations, workspace=factor * graph.operations.workspace, modes=modes)
    tensors = replace(graph.tensors, bytes=factor * graph.tensors.bytes)
    if machine is not None:
        links = [link and replace(link, rate=factor * link.rate) for link in _links(machine)]
        capacities = {
            name: size and factor * size
            for name in ("device_capacity", "host_capacity", "disk_capacity", "pinned")
            for size in [getattr(machine, name)]
        }
        machine = replace(machine, links=Links(*links), **capacities)
    return Problem(replace(graph, operations=operations, tensors=tensors), factor * problem.budget, machine)


def rename(problem: Problem, random: Random) -> Problem:
    """Give the graph, its tensors, operations and variants other names, in no relation to their order."""
    graph = problem.graph
    tensors = replace(graph.tensors, name=_names(random, "tensor", len(graph.tensors)))
    modes = {
        o: tuple(replace(mode, name=f"variant {place}") for place, mode in enumerate(of))
        for o, of in graph.operations.modes.items()
    }
    names = _names(random, "operation", len(graph.operations))
    operations = replace(graph.operations, name=names, modes=modes)
    return replace(problem, graph=replace(graph, name="renamed", tensors=tensors, operations=operations))


def _names(random: Random, word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in random.sample(range(count), count)]


def renumber_tensors(problem: Problem, random: Random) -> Problem:
    """List the tensors in another order; operations keep theirs."""
    graph = problem.graph
    order = random.sample(range(len(graph.tensors)), len(graph.tensors))
    number = {tensor: place for place, tensor in enumerate(order)}

    def numbers(tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[x] for x in tensors)

    def renumbered(mode: Mode) -> Mode:
        lists = {name: numbers(getattr(mode, name)) for name in ("writes", "reads_host", "writes_host")}
        return replace(mode, **lists)

    draft = Draft(graph.name)
    for tensor in order:
        draft.tensor(*graph.tensor(tensor))
    for index in range(len(graph.operations)):
        one: dict[str, Any] = graph.operation(index)._asdict()
        one |= {name: numbers(one[name]) for name in ("reads", "writes", "mutates")}
        one["modes"] = [renumbered(mode) for mode in one["modes"]]
        draft.operation(**one)
    return replace(problem, graph=draft.graph(numbers(tuple(graph.results)), graph.machine))


def permute_independent(graph: Graph, random: Random, swaps: int = 40) -> Graph:
    """Reorder operations as their dependencies allow, by random swaps of neighbors of one phase."""
    order = list(range(len(graph.operations)))
    for _swap in range(swaps if len(order) > 1 else 0):
        at = random.randrange(len(order) - 1)
        swapped = [*order[:at], order[at + 1], order[at], *order[at + 2 :]]
        if graph.operations.phase[order[at]] == graph.operations.phase[order[at + 1]]:
            order = swapped if is_valid_order(graph, swapped) else order
    return in_order(graph, order)


def add_unused_memory(problem: Problem) -> Problem:
    """Add a memory below the last one, slower than any other and without use as none above it is limited."""
    machine = problem.machine or Machine()
    return replace(problem, machine=replace(machine, deeper=(Tier("cxl", 1, Link(1e-3), Link(1e-3)),)))


def _links(machine: Machine) -> tuple[Link | None, ...]:
    links = machine.links
    return links.d2h, links.h2d, links.disk_read, links.disk_write
