"""A machine of two ranks whose times are counted: as planned, until a rank's comes to be other.

Each rank computes on the CPU. An operation takes a second for each of so many bytes that it reads and writes,
a copy as long as its link needs, and a collective begins when the last rank has come to it: the ranks tell
each other their counted times then. So a slow rank makes all wait, however busy this machine is.
"""

from __future__ import annotations

import ctypes
import itertools
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import current_thread
from typing import Any
from unittest.mock import patch

import torch
from memplan.devices.device import device as devices
from memplan.devices.device.cpu import Cpu
from memplan.devices.sharded.communicator import Communicator
from memplan.devices.sharded.ranks import Ranks
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine, Peers
from memplan.model.processes import Processes
from memplan.runtime.codegen import copies
from memplan.runtime.run import stopwatch
from memplan.solvers import background
from memplan.torch_support.torch_processes import default_store
from memplan.training.plans import front_end
from memplan.training.ranks import collectives, sharded
from ranks import RANKS
from simulated_device.clock import HOST, Costs, HostStamp, host_counted
from torch import distributed as dist

from .trial import DISK, LINK, counted_calls, counted_program, counted_times

NETWORK = Peers(1e9, 1e-4, ranks=RANKS)
"""Between the ranks; averages of gradients take its latency alone."""


@dataclass
class CountedRank:
    """The times of one rank.

    costs, on_host, disk_rate: what operations, updates on the CPU and copies take. disk: it has one.
    host_bytes, disk_bytes: what there is for a plan; None for as much as it takes.
    """

    disk: bool = False
    host_bytes: int | None = None
    disk_bytes: int | None = None
    disk_rate: float = DISK
    costs: Costs = field(default_factory=lambda: Costs({}, LINK, LINK))
    on_host: dict[str, float] = field(default_factory=dict[str, float])

    def machine(self) -> Machine:
        """Return the machine as this rank has it now."""
        below = (self.disk_rate, self.disk_rate) if self.disk else ()
        links = Links(self.costs.to_host, self.costs.to_device, *below)
        return Machine(links=links, host_capacity=self.host_bytes, disk_capacity=self.disk_bytes)

    def node(self, ranks: int) -> Machine:
        """Return the node of so many such ranks, which have a part of its memory and its disk each."""
        below = (ranks * self.disk_rate, ranks * self.disk_rate) if self.disk else ()
        capacity = self.host_bytes and ranks * self.host_bytes
        return Machine(links=Links(self.costs.to_host, self.costs.to_device, *below), host_capacity=capacity)

    def planned(self, graph: Graph, names: list[str]) -> None:
        """Have operations take what a plan says. names: of the operations."""
        self.costs.operations = dict(zip(names, graph.operations.time.tolist(), strict=True))
        self.on_host.update({names[row]: of[0].time for row, of in graph.operations.modes.items()})

    def graph_now(self, graph: Graph) -> Graph:
        """Return a plan's first graph with the times that this rank takes now; the network's stay."""
        given, slower = graph.operations, self.costs.slower
        seconds = torch.tensor(given.time)
        others = [place for place in range(len(seconds)) if place not in given.comm]
        seconds[others] *= slower
        return replace(graph, operations=replace(given, time=seconds.numpy()), machine=None)

    def slowest(self) -> CountedRank:
        """Return the ranks as one that is as slow as the slowest of them. All call it together."""
        found: list[Any] = [None] * RANKS
        own = (self.costs.slower, self.costs.to_device, self.costs.to_host, self.disk_rate, self.disk_bytes)
        dist.all_gather_object(found, own)
        slower, *rates = zip(*found, strict=True)
        to_device, to_host, disk_rate = map(min, rates[:3])
        disk_bytes = min((each for each in rates[3] if each is not None), default=None)
        costs = replace(self.costs, slower=max(slower), to_device=to_device, to_host=to_host)
        return replace(self, costs=costs, disk_rate=disk_rate, disk_bytes=disk_bytes)

    @contextmanager
    def entered(self) -> Generator[None]:
        """Have what this rank computes and copies take counted time. All ranks enter it together."""
        group = dist.new_group()

        def meet(seconds: float) -> None:
            """Come to a collective, which takes so long once all have come."""
            memory = ctypes.c_double(HOST.seconds)  # none of PyTorch's: the ranks' memory is counted
            dist.all_reduce(torch.frombuffer(memory, dtype=torch.float64), dist.ReduceOp.MAX, group=group)
            HOST.reach(memory.value)
            HOST.spend(seconds)

        with ExitStack() as stack:
            enter = stack.enter_context
            for owner, name in ((stopwatch, "Now"), (devices, "Now")):
                enter(patch.object(owner, name, HostStamp))
            for owner in (front_end, sharded):
                enter(patch.object(owner, "measure_program", counted_program))
            enter(patch.object(collectives, "measure_around", _counted_around(collectives.measure_around)))
            enter(
                patch.object(collectives, "measure_collectives", _measured(collectives.measure_collectives))
            )
            enter(patch.object(sharded, "measure_network", lambda _ranks: NETWORK))
            enter(patch.object(Processes, "_measured", lambda _processes: (NETWORK.latency, 0.0)))
            enter(patch.object(background, "LOWEST", 0))
            enter(patch.object(Cpu, "launched", self._launched))
            enter(patch.object(Cpu, "copy", self._copy))
            enter(patch.object(copies, "communicate", _then(copies.communicate, meet)))
            for name in ("gather", "scatter"):
                enter(patch.object(Communicator, name, _exchanged(getattr(Communicator, name), meet)))
            enter(patch.object(Ranks, "gathered", _by_store(itertools.count(), default_store())))
            enter(patch.object(Ranks, "from_first", lambda ranks, mine: ranks.gathered(mine)[0]))
            enter(counted_calls(self))
            enter(host_counted())
            yield

    def _launched(self, _program: Any, operation: Any, _workspace: int) -> Any:
        target = operation.call.target

        def run(*arguments: Any, **keywords: Any) -> Any:
            result = target(*arguments, **keywords)
            HOST.spend(self.costs.of(operation))
            return result

        return run

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)
        upwards = current_thread().name.endswith("h2d")
        if upwards or current_thread().name.endswith("d2h"):
            HOST.spend(self.costs.of_copy(source.nbytes, upwards=upwards, pinned=True))


def _by_store(numbers: Iterator[int], store: Any) -> Callable[..., list[Any]]:
    """Return a gather of objects in no memory of PyTorch's: on the CPU it would count as the device's."""

    def gathered(ranks: Ranks, mine: Any) -> list[Any]:
        number = next(numbers)
        store.set(f"faults/{number}/{ranks.rank}", pickle.dumps(mine))
        return [pickle.loads(store.get(f"faults/{number}/{rank}")) for rank in range(ranks.size)]

    return gathered


def _then(communicate: Callable[..., None], meet: Callable[[float], None]) -> Callable[..., None]:
    def run(work: Any) -> None:
        communicate(work)
        meet(NETWORK.latency)

    return run


def _exchanged(exchange: Callable[..., None], meet: Callable[[float], None]) -> Callable[..., None]:
    def run(self: Communicator, pairs: Any) -> None:
        exchange(self, pairs)
        received = sum(max(end.nbytes for end in pair) for pair in pairs) * (RANKS - 1) // RANKS
        meet(NETWORK.seconds(float(received)))

    return run


def _counted_around(measure: Callable[..., Any]) -> Callable[..., Any]:
    def run(program: Any, tensors: Any, known: Any, *given: Any) -> Any:
        return counted_times(program, measure(program, tensors, known, *given), known)

    return run


def _measured(measure: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        return {place: one._replace(seconds=NETWORK.latency) for place, one in measure(*given).items()}

    return run
