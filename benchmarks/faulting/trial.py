"""One training on the simulated device, in which the machine comes to be other than planned.

Times are counted (tests/support/simulated_device/clock.py): an operation takes a second for each of so many
bytes that it reads and writes, a copy as long as its link needs, so they do not depend on this machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

import memplan
import torch
from memplan.devices.storage import disk
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Link, Links, Machine
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.runtime.codegen import host_calls
from memplan.runtime.run import cycle, stopwatch
from memplan.solvers import background
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps import execute
from memplan.training.plans import front_end
from memplan.training.progress import ProgressEvent
from simulated_device.clock import HOST, Costs, HostStamp, host_counted
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays
from torch import Tensor

from .models import BATCHES, MODELS, seeded, state_of

READ, LAUNCH = 1e8, 1e-5
"""Bytes/s of what operations read and write, and seconds that each takes at least."""

LINK, DISK = 1.5e8, 0.5e8
"""Bytes/s."""

ON_HOST = 3.0
"""How much longer an update takes on the CPU."""

PAGEABLE = 0.5
"""Share of a link's rate that copies have from and to memory that is not pinned."""

BUDGET = "75%"
SOLVER, SECONDS = "auto", 1.0


@dataclass
class Trial:
    """A training under way.

    chance: draws when and where things fail.
    disk: plans may offload to a disk, with half of the host memory that they would take.
    said: lines of the training: warnings and reports.
    host_bytes, disk_bytes: what there is, None for as much as anybody takes.
    pageable: nothing is pinned.
    """

    model: str
    chance: Random
    disk: bool = False
    budget: str = BUDGET
    said: list[str] = field(default_factory=list[str])
    losses: list[Tensor] = field(default_factory=list[Tensor])
    host_bytes: int | None = None
    disk_bytes: int | None = None
    pageable: bool = False

    def __post_init__(self) -> None:
        self.costs = Costs({}, LINK, LINK, unpinned=PAGEABLE)
        self.on_host = dict[str, float]()
        self.disk_rate = DISK
        seed = self.chance.randrange(100)
        self.device = SimulatedDevice(seed, costs=self.costs, delays=lambda name: Delays(name, 0.0))
        self.stack = ExitStack()
        self.module, self.optimizer, self.batches = seeded(self.model)
        self.step: Any = None
        self.allocations = 1
        self.turn = 0
        if self.disk:
            self.host_bytes = needed(self.model)[0] // 2

    @property
    def needed(self) -> tuple[int, int, int]:
        """Bytes of a plan on the host and on the disk, and those that undoing takes in addition."""
        return needed(self.model, disk=self.disk)

    # ── the machine ─────────────────────────────────────────────────────────────────────────────────

    def machine(self) -> Machine:
        """Return the machine as it is now."""
        factor = PAGEABLE if self.pageable else 1.0
        d2h, h2d = (Link(factor * rate) for rate in (self.costs.to_host, self.costs.to_device))
        below = (self.disk_rate, self.disk_rate) if self.disk else ()
        return Machine(
            links=Links(d2h, h2d, *below), host_capacity=self.host_bytes, disk_capacity=self.disk_bytes
        )

    def stated(self) -> Machine:
        """Return the machine as the user states it."""
        rates = (LINK, LINK, DISK, DISK) if self.disk else (LINK, LINK)
        host = needed(self.model)[0] // 2 + needed(self.model)[2] if self.disk else None
        return Machine(links=Links(*rates), host_capacity=host)

    def __enter__(self) -> Trial:
        enter = self.stack.enter_context
        for room in (execute, cycle):
            enter(patch.object(room, "device_of", lambda _name: self.device))
        enter(patch.object(front_end, "measure_program", counted_program))
        enter(patch.object(front_end, "graph_from", partial(graph_from, block_bytes=512)))
        enter(patch.object(background, "LOWEST", 0))
        enter(host_counted())
        enter(patch.object(stopwatch, "Now", HostStamp))
        enter(counted_calls(self))
        enter(warnings.catch_warnings())
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **_named: self.said.append(f"warning: {message}")
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stack.close()

    # ── training ────────────────────────────────────────────────────────────────────────────────────

    def plan(self) -> None:
        batch = self._batch(0)
        given: dict[str, Any] = {} if "targets" not in batch else {"targets": batch.pop("targets")}
        model = MODELS[self.model]
        if model.loss_fn is not None:
            given["loss_fn"] = model.loss_fn
        inputs: Any = batch.get("x", batch)
        torch.manual_seed(0)
        self.step = memplan.optimize(
            self.module,
            inputs,
            budget=self.budget,
            machine=self.stated(),
            optimizer=self.optimizer,
            rollback_on_error=True,
            solver=SOLVER,
            time_limit=SECONDS,
            cache=False,
            verify=False,
            progress=self._tell,
            **given,
        )
        self.graph, self.limit = self.step.plan.graph, self.step.plan.budget
        self.first = self.step.plan.schedule
        self.names = [each.name for each in self.step.plans[0].program.operations]
        times = self.graph.operations.time.tolist()
        self.costs.operations = dict(zip(self.names, times, strict=True))
        modes = self.graph.operations.modes.items()
        self.on_host = {self.names[row]: of[0].time for row, of in modes}
        self.device.reset_peak()

    def _tell(self, event: ProgressEvent) -> None:
        if event.phase == "train" and event.text:
            self.said.append(event.text)

    def _batch(self, turn: int) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.batches[turn % BATCHES].items()}

    def iterate(self) -> None:
        """Run the next iteration, or the one that has failed."""
        torch.manual_seed(self.turn)
        batch = self._batch(self.turn)
        x = batch.pop("x", None)
        loss = self.step(x, **batch) if x is not None else self.step(**batch)
        self.losses.append(self._read(loss.detach()))
        self.turn += 1

    def _read(self, loss: Tensor) -> Tensor:
        """Return a copy of the loss, made on the device's queue as what a user computes with it."""
        if not self.device.has(loss):
            return loss.clone()
        made, alias = torch.empty_like(loss), self.device.alias(loss)

        def copy() -> None:
            made.copy_(alias)

        self.device.launch(copy)
        return made

    def settled(self) -> None:
        """Wait for a solver in the background, which has the clock of this machine."""
        adapter = self.step._executor._adapter
        for case in list(adapter._cases.values()):
            if case.solving is not None:
                case.solving.ended.wait(120)

    def state(self) -> dict[str, Tensor]:
        self.step.restore_to_device()
        self.device.synchronize()
        return state_of(self.module, self.optimizer)

    def count_allocations(self) -> None:
        """Run an iteration, and note how many allocations it makes."""
        before = self.device.faults.seen["allocation"]
        self.iterate()
        self.allocations = self.device.faults.seen["allocation"] - before

    # ── what is to be seen ──────────────────────────────────────────────────────────────────────────

    def graph_now(self) -> Graph:
        """Return the graph with the times that the machine takes now."""
        given = self.graph.operations
        modes = {
            row: tuple(replace(mode, time=self.on_host[self.names[row]]) for mode in of)
            for row, of in given.modes.items()
        }
        operations = replace(given, time=self.costs.slower * given.time, modes=modes)
        return replace(self.graph, operations=operations, machine=None)

    def is_as_fast(self) -> bool:
        """Tell whether an iteration of the first plan takes about as long as it did, by the simulator."""
        now = simulate(self.graph_now(), self.first, machine=self.machine()).figures.time
        return now < 1.12 * simulate(self.graph, self.first, machine=self.stated()).figures.time

    def times_now(self) -> tuple[float, float]:
        """Return the seconds of the plan on the machine as it is, and of a fresh one in the same budget."""
        graph, plan, machine = self.graph_now(), self.step.plan, self.machine()
        of = partial(simulate, graph, machine=machine)
        fresh = solve(SOLVER, Problem(graph, plan.budget, machine), SECONDS, bound_seconds=0)
        return of(plan.schedule).figures.time, of(fresh.schedule).figures.time


@cache
def needed(model: str, *, disk: bool = False) -> tuple[int, int, int]:
    """Return `Trial.needed` of a plan that is made and not run."""
    with Trial(model, Random(0), disk=disk) as trial:
        trial.plan()
        plan = trial.step.plan.figures
        return plan.host_peak, plan.disk_peak, trial.step.plans[0].journal.host.needed


class HostTimes(Protocol):
    """Times of a trial's host: seconds of updates on the CPU, by name, and the disk's bytes/s."""

    on_host: dict[str, float]
    disk_rate: float


@contextmanager
def counted_calls(times: HostTimes) -> Iterator[None]:
    """Let the CPU's operations and the disk's copies take counted time."""
    made, call = host_calls.CpuOperation.__init__, host_calls.CpuOperation.__call__
    write, read = disk.Disk.write, disk.Disk.read

    def init(self: Any, program: Any, operation: Any, workspace: int) -> None:
        made(self, program, operation, workspace)
        self.name = operation.name

    def called(self: Any, *arguments: Any) -> None:
        call(self, *arguments)
        HOST.spend(times.on_host.get(self.name, 0.0))

    def wrote(self: Any, data: Any, offset: int) -> Any:
        HOST.spend(len(data) / times.disk_rate)
        return write(self, data, offset)

    def has_read(self: Any, data: Any, offset: int, sums: Any) -> None:
        HOST.spend(len(data) / times.disk_rate)
        read(self, data, offset, sums)

    with (
        patch.object(host_calls.CpuOperation, "__init__", init),
        patch.object(host_calls.CpuOperation, "__call__", called),
        patch.object(disk.Disk, "write", wrote),
        patch.object(disk.Disk, "read", has_read),
    ):
        yield


def counted_program(program: Any, *given: Any, **named: Any) -> list[Any]:
    """Measure a program's memory; its times are by bytes."""
    return counted_times(program, measure_program(program, *given, **named))


def counted_times(program: Any, found: list[Any], known: Container[int] = ()) -> list[Any]:
    """Return measurements with times by bytes, but for the collectives. known: places whose times stay."""
    for row, operation in enumerate(program.operations):
        if row in known:
            continue
        stores = {*operation.reads, *operation.writes, *operation.mutates}
        seconds = LAUNCH + sum(program.storages[x].bytes for x in stores) / READ
        if hasattr(operation.call.target, "issue"):  # the network's time is added to it
            seconds = 0.0
        on_host = ON_HOST * seconds if found[row].host_seconds is not None else None
        found[row] = found[row]._replace(seconds=seconds, host_seconds=on_host, launch=0.0)
    return found
