"""The machine that a solver moves tensors on."""

from __future__ import annotations

from dataclasses import dataclass

from ..graphs.machine import Machine
from .problem import NotAcceptedError, Problem


@dataclass(frozen=True)
class LinkedMachine:
    """d2h, h2d: bytes/s, which a machine need not have and this one has."""

    machine: Machine
    d2h: float
    h2d: float


def linked_machine(solver: str, problem: Problem, moves: str) -> LinkedMachine:
    """The problem's machine, or the graph's. moves: what the solver moves, for the refusal.

    Raises NotAcceptedError where it has no links between device and host.
    """
    machine = problem.machine or problem.graph.machine or Machine()
    d2h, h2d = machine.links.d2h, machine.links.h2d
    if d2h is None or h2d is None:
        raise NotAcceptedError(
            f"{solver} needs a machine with links d2h and h2d: it moves {moves} between device and host"
        )
    return LinkedMachine(machine, d2h, h2d)
