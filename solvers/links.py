"""The machine that a solver moves tensors on."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..graphs.graph import Graph
from ..graphs.machine import Link, Machine
from .problem import NotAcceptedError, Problem


@dataclass(frozen=True)
class LinkedMachine:
    """d2h, h2d: links that a machine need not have and this one has."""

    machine: Machine
    d2h: Link
    h2d: Link

    def rates(self, graph: Graph) -> tuple[float, float]:
        """Bytes/s down and up of the tensors worth moving, one by one: for programs that move bytes."""
        sizes: list[int] = graph.tensors.bytes[graph.tensors.bytes >= worth_moving(self.machine)].tolist()
        return self.d2h.rate_of(sizes), self.h2d.rate_of(sizes)


def worth_moving(machine: Machine) -> int:
    """The bytes from which a tensor is worth a way to the host and back; 1 without latencies.

    What its absence gives is room for b bytes. Taken from larger tensors the same room costs the links b / β:
    so much is it worth. A copy costs λ + b / β, so where both latencies together are more than both b / β
    (below Hockney's n½ of the two ways), the latency alone costs more than the tensor can give. Solvers that
    choose what moves leave such tensors on the device, unless the budget can't be met without them.
    """
    out, back = machine.links.d2h, machine.links.h2d
    if out is None or back is None:
        return 1
    return max(1, ceil((out.latency + back.latency) / (1 / out.rate + 1 / back.rate)))


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
