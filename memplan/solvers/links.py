"""Machines with links, for solvers that transfer tensors."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil

import numpy as np

from ..graphs.graph import Graph, Kind
from ..graphs.machine import Link, Machine
from .problem import NotAcceptedError, Problem

_LARGEST = 2**50
"""Bytes that no tensor has."""


@dataclass(frozen=True)
class LinkedMachine:
    """A machine that surely has links between device and host.

    d2h, h2d: these links.
    """

    machine: Machine
    d2h: Link
    h2d: Link

    def rate(self, graph: Graph, link: Link) -> float:
        """Return the bytes per second of tensors worth transferring, one by one."""
        sizes: list[int] = graph.tensors.bytes[graph.tensors.bytes >= worth_moving(self.machine)].tolist()
        return link.rate_of(sizes)

    def rates(self, graph: Graph) -> tuple[float, float]:
        """Return the rates down to the host and up to the device, in bytes per second."""
        return self.rate(graph, self.d2h), self.rate(graph, self.h2d)


def worth_moving(machine: Machine) -> int:
    """Return the bytes from which a tensor is worth a transfer to the host and back, or two on the network
    between ranks; 1 without latencies.

    An offload interval frees memory for b bytes. Taken from larger tensors, the same memory costs the links
    b / β. So a tensor is worth its copies if they take at most twice that (from Hockney's n½ of the two
    directions on). Solvers that choose what to transfer leave smaller tensors on the device, unless the
    budget can't be met without them.
    """
    links = machine.links
    # in sharded training most of what moves are weights
    out, back = (links.peers, links.peers) if links.peers else (links.d2h, links.h2d)
    if out is None or back is None:
        return 1
    large = 1 / out.best_rate + 1 / back.best_rate
    if not large:  # bytes take no time: no size is better than another
        return 1
    if not (out.measured or back.measured):
        return max(1, ceil((out.latency + back.latency) / large))

    def is_worth(size: int) -> bool:
        return out.seconds(float(size)) + back.seconds(float(size)) <= 2 * size * large

    # Latency counts less the larger the tensor, so what is worth it stays so from some size on.
    return bisect_left(range(_LARGEST), True, 1, key=is_worth)


def linked_machine(solver: str, problem: Problem, moves: str, kinds: tuple[Kind, ...] = ()) -> LinkedMachine:
    """Return the problem's machine, or the graph's.

    moves: what the solver transfers, for the error's message. kinds: those without which it does nothing.

    Raises NotAcceptedError if it has no links between device and host, or if all of `kinds` stay.
    """
    machine = problem.machine or problem.graph.machine or Machine()
    d2h, h2d = machine.links.d2h, machine.links.h2d
    if d2h is None or h2d is None:
        raise NotAcceptedError(
            f"{solver} needs a machine with links d2h and h2d: it moves {moves} between device and host"
        )
    if (stays := problem.graph.stays).any() and kinds:
        moving = np.isin(problem.graph.tensors.kind, kinds)
        if moving.any() and not (moving & ~stays).any():
            raise NotAcceptedError(f"{solver} moves {moves} between device and host, which all stay")
    return LinkedMachine(machine, d2h, h2d)
