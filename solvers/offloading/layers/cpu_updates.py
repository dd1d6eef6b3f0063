"""What the systems that update weights on the CPU ask of a graph, and of the memories beside the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....graphs.errors import MemplanError
from ....graphs.machine import Machine, Memory
from ....planner.budget import spelled
from ....planner.residence.residence import Residence, residence_schedule
from ....planner.residence.transfers import judged
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import Figures
from ....planner.simulator.walk import Walk
from ...candidates import device_limit, infeasible
from ...problem import NotAcceptedError, Problem
from .training import TrainingLayers, training_layers


def layers_updated_on_cpu(solver: str, problem: Problem) -> TrainingLayers:
    """Raises NotAcceptedError where the graph is no chain of layers, or has not all updates on the CPU."""
    graph = problem.graph
    layers = training_layers(solver, graph)
    updates = [operation for layer in layers.layers for operation in layer.updates]
    if not updates:
        raise NotAcceptedError(
            f"{solver} plans updates on the CPU, and {graph.name} has no update operations: "
            "profile it with an optimizer"
        )
    for operation in updates:
        if layers.host_modes([operation]) is None:
            name = graph.operations.name[operation]
            raise NotAcceptedError(
                f"{solver} updates weights on the CPU: operation {name} has no mode that runs there"
            )
    return layers


def states_memory(solver: str, machine: Machine, chosen: str, layers: TrainingLayers) -> Memory:
    """Raises NotAcceptedError where a disk is asked for and the machine has none."""
    links = machine.links
    has_disk = links.disk_read is not None and links.disk_write is not None
    if chosen == "disk" and not has_disk:
        raise NotAcceptedError(f"{solver} with states=disk needs a machine with links disk_read, disk_write")
    size = sum(layers.size((*layer.weights, *layer.states)) for layer in layers.layers)
    small = machine.host_capacity is not None and size > machine.host_capacity // 2
    return Memory.DISK if has_disk and (chosen == "disk" or (chosen == "auto" and small)) else Memory.HOST


def first_that_fits(
    solver: str, problem: Problem, machine: Machine, ways: Iterable[Residence]
) -> tuple[Schedule, Figures]:
    """Of ways to place everything, the first within the budget.

    Raises InfeasibleError with the least that any of them takes; NotAcceptedError where the host or the disk
    is too small for all of them on a device of any size.
    """
    limit, tried = device_limit(problem), list(ways)
    for way in tried:
        found = judged(problem.graph, machine, limit, way)
        if found:
            return found
    raise refused(solver, problem, machine, tried)


def refused(solver: str, problem: Problem, machine: Machine, ways: Iterable[Residence]) -> MemplanError:
    """Why none of these ways fits."""
    graph, tried = problem.graph, list(ways)
    endless = replace(machine, device_capacity=None)
    held = [judged(graph, endless, 2**62, way) for way in tried]
    least = [found[1].least_budget for found in held if found]
    if least:
        return infeasible(solver, problem, min(least))
    roomy = replace(endless, host_capacity=None, disk_capacity=None)
    held_beside = [_beside(problem, roomy, way) for way in tried]
    host, disk = min(host for host, _disk in held_beside), min(disk for _host, disk in held_beside)
    room = [
        f"{spelled(size)} {place}"
        for place, size in (("of host memory", machine.host_capacity), ("of disk", machine.disk_capacity))
        if size is not None
    ]
    return NotAcceptedError(
        f"{solver} needs {spelled(host)} of host memory and {spelled(disk)} of disk; "
        f"the machine has {' and '.join(room)}"
    )


def _beside(problem: Problem, machine: Machine, way: Residence) -> tuple[int, int]:
    """The least host and disk bytes with which a way's schedule holds."""
    walk = Walk(problem.graph, residence_schedule(problem.graph, way), budget=None, machine=machine)
    walk.turn()
    return walk.ledgers[Memory.HOST].least, walk.ledgers[Memory.DISK].least
