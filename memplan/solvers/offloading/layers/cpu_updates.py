"""Requirements on graph and machine of the systems that update weights on the CPU."""

from __future__ import annotations

from ....graphs.machine import Machine, Memory
from ...problem import NotAcceptedError, Problem
from .training import TrainingLayers, training_layers

STATES = ("auto", "host", "disk")
"""Memories that can be requested for model states."""


def layers_updated_on_cpu(solver: str, problem: Problem) -> TrainingLayers:
    """Return the layers of a graph whose updates can all run on the CPU.

    Raises NotAcceptedError if the graph is not a chain of layers, or an update has no variant on the CPU.
    """
    graph = problem.graph
    layers = training_layers(solver, graph)
    if not layers.updates:
        raise NotAcceptedError(
            f"{solver} plans updates on the CPU, and {graph.name} has no update operations: "
            "profile it with an optimizer"
        )
    for operation in layers.updates:
        if layers.host_modes([operation]) is None:
            name = graph.operations.name[operation]
            raise NotAcceptedError(
                f"{solver} updates weights on the CPU: operation {name} has no mode that runs there"
            )
    return layers


def check_updates_wait(solver: str, layers: TrainingLayers) -> None:
    """Raise NotAcceptedError if an update cannot run after all other operations: one changes what it
    reads."""
    graph = layers.graph
    updates = set(layers.updates)
    read = dict[int, int]()  # tensor -> an update before this operation
    for operation, changes in enumerate(graph.mutate_lists):
        if operation in updates:
            read |= dict.fromkeys(graph.read_lists[operation], operation)
        elif before := [read[x] for x in changes if x in read]:
            first, then = (graph.operations.name[each] for each in (before[0], operation))
            raise NotAcceptedError(f"{solver} puts updates after all else: {first} must run before {then}")


def states_memory(solver: str, machine: Machine, chosen: str, layers: TrainingLayers) -> Memory:
    """Return the memory for model states.

    Raises NotAcceptedError if it is the disk and the machine has none.
    """
    links = machine.links
    has_disk = links.disk_read is not None and links.disk_write is not None
    if chosen == "disk" and not has_disk:
        raise NotAcceptedError(f"{solver} with states=disk needs a machine with links disk_read, disk_write")
    size = layers.size((*layers.weights, *layers.states))
    small = machine.host_capacity is not None and size > machine.host_capacity // 2
    return Memory.DISK if has_disk and (chosen == "disk" or (chosen == "auto" and small)) else Memory.HOST
