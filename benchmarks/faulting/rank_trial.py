"""A rank's training by a plan, and what is seen of it: bits, bytes, seconds by the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from time import perf_counter
from typing import Any
from zlib import crc32

import memplan
import torch
from failing_operations import FailingAt
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.training.progress import ProgressEvent
from ranks import RANKS
from simulated_device.clock import Costs
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .counted_ranks import CountedRank
from .models import BATCHES, MODELS, State, adamw, made, state_of

DDP, FSDP = "DDP", "FSDP2"
MACHINE = Machine(host_capacity=2**30, links=Links(2e9, 2e9))
SOLVER, SECONDS = "joint", 0.5
COUNTED_SECONDS = 1.0
"""The solver's, if times are counted: its plans are compared."""

COUNT = 4
"""Bytes of AdamW's count of steps, which each parameter has outside of plans."""


@dataclass
class RankTrial:
    """The training of one rank.

    halved: the iteration whose batch is smaller here; None for none. needed: bytes of its plan on the host,
    on a machine as planned; needed_disk: on its disk. host_bytes: those that there are, None for as many as
    anybody takes. counted: the rank's times, None for this machine's.
    operations, seconds: of an iteration.
    """

    rank: int
    way: str
    model: str
    chance: Random
    budget: str
    turn: int = 0
    halved: int | None = None
    needed: int = 0
    needed_disk: int = 0
    counted: CountedRank | None = None
    host_bytes: int | None = None
    operations: int = 2
    seconds: float = 0.0
    said: list[str] = field(default_factory=list[str])
    losses: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def on_node(self) -> int:
        """Number of ranks whose plan takes the same memory on this node; each of DDP looks for itself."""
        return RANKS if self.way == FSDP else 1

    @property
    def costs(self) -> Costs:
        """Counted times of the rank's operations and copies."""
        assert self.counted is not None
        return self.counted.costs

    @property
    def stated(self) -> Machine:
        """The machine as the user states it: a node, of which each rank that runs one plan has a part."""
        return MACHINE if self.counted is None else self.counted.node(self.on_node)

    def plan(self) -> None:
        self.module, self.batches = made(self.model, self.rank)
        self.optimizer = adamw(self.module)
        batch, model = dict(self.batches[0]), MODELS[self.model]
        given: dict[str, Any] = {} if "targets" not in batch else {"targets": batch.pop("targets")}
        if model.loss_fn is not None:
            given["loss_fn"] = model.loss_fn
        if self.way == FSDP:
            given["shard"] = True
        inputs: Any = batch.get("x", batch)
        torch.manual_seed(self.rank)
        self.step: Any = memplan.optimize(
            self.module if self.way == FSDP else DistributedDataParallel(self.module),
            inputs,
            budget=self.budget,
            machine=self.stated,
            optimizer=self.optimizer,
            solver=SOLVER,
            time_limit=SECONDS if self.counted is None else COUNTED_SECONDS,
            cache=False,
            verify=False,
            progress=self._tell,
            **given,
        )
        self.limit, self.first = self.step.plan.budget, self.step.plan
        if self.counted is not None:
            names = [each.name for each in self.step.plans[0].program.operations]
            self.counted.planned(self.first.graph, names)

    def _tell(self, event: ProgressEvent) -> None:
        if event.phase == "train" and event.text:
            self.said.append(event.text)

    def batch(self, turn: int) -> dict[str, Tensor]:
        return batch_at(self.batches, turn, self.halved)

    def iterate(self) -> None:
        batch = self.batch(self.turn)
        torch.manual_seed(RANKS * self.turn + self.rank)
        x, begun = batch.pop("x", None), perf_counter()
        loss = self.step(x, **batch) if x is not None else self.step(**batch)
        self.losses.append(loss.detach().clone())
        self.turn += 1
        self.seconds = perf_counter() - begun
        if self.counted is not None:  # a solver in the background has the clock of this machine
            for case in list(self.step._executor._adapter._cases.values()):
                if case.solving is not None:
                    case.solving.ended.wait(60)

    def count_operations(self) -> None:
        """Run an iteration, and note how many operations it has."""
        FailingAt.now = counting = FailingAt()
        self.iterate()
        FailingAt.now, self.operations = None, counting.count

    def held(self) -> int:
        """Return the bytes on the device that no iteration has allocated, less those of no plan."""
        tensors = (*map(local_tensor, self.module.parameters()), *self.module.buffers())
        stay = sum(each.untyped_storage().nbytes() for each in tensors if hold_of(each) is None)
        batch = sum(each.nbytes for each in self.batches[0].values())
        return stay + batch - COUNT * len(self.optimizer.state) - sum(each.nbytes for each in self.losses)

    def on_cpu(self) -> int:
        """Return the most bytes that an operation on the host takes: PyTorch's allocator has them here too.

        One thread runs these operations, at no set moment.
        """
        plan = self.step.plan
        modes, schedule = plan.graph.operations.modes, plan.schedule
        there = (schedule.verbs == Verb.COMPUTE) & (schedule.wheres != DEFAULT_MODE)
        ways = zip(schedule.targets[there].tolist(), schedule.wheres[there].tolist(), strict=True)
        return max((modes[operation][where - 1].workspace for operation, where in ways), default=0)

    def state(self) -> State:
        self.step.restore_to_device()
        return state_of(self.module, self.optimizer)

    def seen(self) -> dict[str, Any]:
        """Return what an ending says of counted times. All ranks call it together."""
        assert self.counted is not None
        # Ranks that run one plan run it at the pace of the slowest; others are planned by their own times.
        now = self.counted.slowest() if self.way == FSDP else self.counted
        graph, machine, plan = now.graph_now(self.first.graph), now.machine(), self.step.plan
        links = self.first.graph.machine and self.first.graph.machine.links
        machine = replace(machine, links=replace(machine.links, peers=links and links.peers))
        fresh = solve(SOLVER, Problem(graph, plan.budget, machine), COUNTED_SECONDS, bound_seconds=0)
        of = partial(simulate, graph, machine=machine)
        stated = self.first.graph.machine or self.stated
        before = simulate(self.first.graph, self.first.schedule, machine=stated).figures.time
        columns = (plan.schedule.verbs, plan.schedule.targets, plan.schedule.wheres)
        return {
            "share": of(plan.schedule).figures.time / of(fresh.schedule).figures.time,
            "as_fast": of(self.first.schedule).figures.time < 1.12 * before,
            "schedule": crc32(b"".join(each.tobytes() for each in columns)),
        }

    def share(self) -> float:
        """Return the simulated time of the plan over a fresh one's for the host memory that is there."""
        plan = self.step.plan
        machine = replace(plan.graph.machine or MACHINE, host_capacity=self.host_bytes)
        fresh = solve(SOLVER, Problem(plan.graph, plan.budget, machine), SECONDS, bound_seconds=0)
        return simulate(plan.graph, plan.schedule, machine=machine).figures.time / fresh.figures.time


def batch_at(batches: Sequence[dict[str, Tensor]], turn: int, halved: int | None) -> dict[str, Tensor]:
    batch = batches[turn % BATCHES]
    return {name: each[: len(each) // 2] for name, each in batch.items()} if turn == halved else dict(batch)
