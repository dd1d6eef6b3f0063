"""One training on two ranks over gloo, in which one of them comes to be other than planned.

Each rank computes on the CPU; what its plan offloads is in memory that PyTorch's allocator does not count.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import memplan
import torch
from failing_operations import FailingAt, enter_faults
from memplan.devices.measuring.live_bytes import live_peak
from memplan.devices.sharded.local_tensors import local_tensor
from memplan.devices.storage.offloaded import hold_of
from memplan.graphs.errors import MemplanError
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.schedule import DEFAULT_MODE, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.peaks import generator_bytes
from memplan.runtime.run.recovery import Recovery
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.torch_support.out_of_memory import is_out_of_memory
from memplan.training.progress import ProgressEvent
from memplan.training.ranks.together import end_groups
from ranks import RANKS, ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .models import BATCHES, MODELS, State, adamw, made, state_of
from .rank_kinds import PLANNED, RANK_KINDS, May, RankKind, killed, other_shape
from .run import SHORT, WRONG, Row, same

DDP, FSDP = "DDP", "FSDP2"
BUDGETS = {DDP: "75%", FSDP: "70%"}
MACHINE = Machine(host_capacity=2**30, links=Links(2e9, 2e9))
SOLVER, SECONDS = "joint", 0.5

COUNTED = 24
"""Iterations whose memory is counted; a fault comes before the last of them."""

COUNT = 4
"""Bytes of AdamW's count of steps, which each parameter has outside of plans."""

MESSAGES = 2**10
"""Bytes of what ranks tell each other of a refused batch: on the CPU they are in the device's memory too, as
is the state of a generator that a draw keeps."""

TIMEOUT, PATIENCE, LIMIT = 60.0, 30.0, 120.0
"""Seconds that collectives wait, in which ranks must end after a fault that ends them, and in which they plan
and train, but for a second per iteration.
"""

WORDS = {May.GO_ON: "goes on", May.REPLAN: "goes on, replans", May.END: "ends", May.REFUSE: "refuses"}


class Ending(NamedTuple):
    """The end of one rank's training.

    turns: iterations that it trained. error: "" if there was none. seconds: from the fault on.
    faults: what is wrong. refused: lines of calls after which it went on.
    """

    turns: int
    error: str
    seconds: float
    said: list[str]
    faults: list[str]
    refused: list[str]
    share: float | None = None


@dataclass
class RankTrial:
    """The training of one rank.

    halved: the iteration whose batch is smaller here; None for none. needed: bytes of its plan on the host,
    on a machine as planned. host_bytes: those that there are, None for as many as anybody takes.
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
    host_bytes: int | None = None
    operations: int = 2
    seconds: float = 0.0
    said: list[str] = field(default_factory=list[str])
    losses: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def on_node(self) -> int:
        """Number of ranks whose plan takes the same memory on this node; each of DDP looks for itself."""
        return RANKS if self.way == FSDP else 1

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
            machine=MACHINE,
            optimizer=self.optimizer,
            solver=SOLVER,
            time_limit=SECONDS,
            cache=False,
            verify=False,
            progress=self._tell,
            **given,
        )
        self.limit = self.step.plan.budget

    def _tell(self, event: ProgressEvent) -> None:
        if event.phase == "train" and event.text:
            self.said.append(event.text)

    def batch(self, turn: int) -> dict[str, Tensor]:
        return _batch(self.batches, turn, self.halved)

    def iterate(self) -> None:
        batch = self.batch(self.turn)
        torch.manual_seed(RANKS * self.turn + self.rank)
        x, begun = batch.pop("x", None), perf_counter()
        loss = self.step(x, **batch) if x is not None else self.step(**batch)
        self.losses.append(loss.detach().clone())
        self.turn += 1
        self.seconds = perf_counter() - begun

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

    def share(self) -> float:
        """Return the simulated time of the plan over a fresh one's for the host memory that is there."""
        plan = self.step.plan
        machine = replace(plan.graph.machine or MACHINE, host_capacity=self.host_bytes)
        fresh = solve(SOLVER, Problem(plan.graph, plan.budget, machine), SECONDS, bound_seconds=0)
        return simulate(plan.graph, plan.schedule, machine=machine).figures.time / fresh.figures.time


def _batch(batches: Sequence[dict[str, Tensor]], turn: int, halved: int | None) -> dict[str, Tensor]:
    batch = batches[turn % BATCHES]
    return {name: each[: len(each) // 2] for name, each in batch.items()} if turn == halved else dict(batch)


def eager(
    way: str, model: str, rank: int, iterations: int, halved: tuple[int, int] | None, folder: str
) -> tuple[list[Tensor], list[State]]:
    """Return losses, and states before each iteration and after the last, of training by eager PyTorch.

    All ranks call it together; what they have found is in the folder for the next time.

    halved: an iteration with a smaller batch, and the rank that has it.
    """
    file = Path(folder) / f"{way}-{model}-{iterations}-{halved}-{rank}.pt"
    if file.exists():
        return torch.load(file, weights_only=False)
    module, batches = made(model, rank)
    called: nn.Module = module
    if way == FSDP:
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    else:
        called = DistributedDataParallel(module)
    optimizer = adamw(module)
    losses, states = list[Tensor](), [state_of(module, optimizer)]
    smaller = None if halved is None or halved[1] != rank else halved[0]
    for turn in range(iterations):
        torch.manual_seed(RANKS * turn + rank)
        loss = MODELS[model].loss(called, _batch(batches, turn, smaller))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        states.append(state_of(module, optimizer))
    torch.save((losses, states), file)
    return losses, states


def train(rank: int, name: str, way: str, model: str, seed: int, iterations: int, folder: str) -> Ending:
    """Train on one rank. The fault comes on the kind's rank."""
    kind, both = RANK_KINDS[name], Random(f"{name} {way} {model} {seed}")
    begin = 3 if iterations <= SHORT else both.randrange(8, 18)
    # A plan for a smaller batch may need more: convolutions choose their workspaces by shape.
    budget = "100%" if kind.fault is other_shape else BUDGETS[way]
    trial = RankTrial(rank, way, model, Random(both.random() + rank), budget)
    halved = (begin, kind.at) if kind.fault is other_shape and way == DDP else None
    known = eager(way, model, rank, iterations, halved, folder)
    enter_faults(_in_iterations)
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **_named: trial.said.append(f"{message}")
    if kind.before:
        once = replace(trial, said=[])
        once.plan()
        trial.needed = once.step.plan.figures.host_peak
        del once
    with ExitStack() as faults:
        if kind.before and rank == kind.at:
            faults.enter_context(kind.fault(trial))
        return Run(kind, trial, faults, begin, iterations, known).ending()


def _in_iterations(owner: Any, name: str, value: Any) -> None:
    """Replace what surrounds a plan's iterations, and not what comes before them."""
    if owner is Recovery:
        setattr(owner, name, value)


@dataclass
class Run:
    """A rank's iterations, and what becomes of them. began: when the fault came."""

    kind: RankKind
    trial: RankTrial
    faults: ExitStack
    begin: int
    iterations: int
    known: tuple[list[Tensor], list[State]]
    began: float = 0.0
    wrong: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def ending(self) -> Ending:
        trial, error, share = self.trial, "", None
        try:
            trial.plan()
        except MemplanError as refusal:
            return Ending(0, "", 0.0, trial.said, [], [f"{refusal}"])
        try:
            peak = live_peak(partial(self._until, self._counted())).peak_bytes + trial.held()
            outside = MESSAGES * len(self.refused) + generator_bytes(trial.step.plans[0].program)
            if peak > trial.limit + trial.on_cpu() + outside:
                self.wrong.append(f"{peak:,} bytes, the budget is {trial.limit:,}")
            self._until(self.iterations)
        except BaseException as raised:
            error = self._ended(raised)
        seconds = perf_counter() - self.began
        if not error:
            self._compare([trial.turn], set())
            if self.kind.says == PLANNED and self.iterations > SHORT:
                share = trial.share()
        return Ending(trial.turn, error, seconds, trial.said, self.wrong, self.refused, share)

    def _counted(self) -> int:
        """Return the iteration until which memory is counted: to plan in between takes some of its own."""
        plans = self.kind.fault is other_shape and self.trial.way == DDP
        return self.begin if plans else min(COUNTED, self.iterations)

    def _until(self, end: int) -> None:
        trial, mine = self.trial, self.trial.rank == self.kind.at
        while trial.turn < end:
            if trial.turn == self.begin - 1 and mine:
                trial.count_operations()
                continue
            if trial.turn == self.begin and not self.refused:
                self.began = perf_counter()
                if mine and not self.kind.before:
                    self.faults.enter_context(self.kind.fault(trial))
            try:
                trial.iterate()
            except MemplanError as error:
                if May.REFUSE not in self.kind.fsdp or self.refused:
                    raise
                self.refused.append(f"{error}")
                self.faults.close()
        for plan in trial.step.plans:
            if plan.cycle is not None:
                plan.cycle.end_jobs()

    def _ended(self, raised: BaseException) -> str:
        """Leave the others as a program does that this error ends, and return its line."""
        FailingAt.now = None
        expected = isinstance(raised, MemplanError | KeyboardInterrupt | OSError) or is_out_of_memory(raised)
        if not expected:
            self.wrong.append(repr(raised))
        self.faults.close()
        sys.last_value = raised
        end_groups()
        # DistributedDataParallel's buffers are the first rank's as soon as an iteration begins.
        buffers = {name for name, _each in self.trial.module.named_buffers()}
        with suppress(MemplanError):  # weights may be refused until others are loaded
            self._compare([self.trial.turn, self.trial.turn + 1], buffers if self.trial.way == DDP else set())
        return "; ".join([f"{type(raised).__name__}: {raised}", *getattr(raised, "__notes__", ())])

    def _compare(self, turns: Sequence[int], without: set[str]) -> None:
        losses, states = self.known
        found, *known = (
            {name: each for name, each in state.items() if name not in without}
            for state in (self.trial.state(), *states[turns[0] : turns[-1] + 1])
        )
        if not all(map(torch.equal, self.trial.losses, losses)):
            self.wrong.append("other losses")
        if not any(same(found, each) for each in known):
            self.wrong.append("other weights")


def run_on_ranks(kind: RankKind, way: str, model: str, seed: int, iterations: int, folder: str) -> Row:
    """Train so many iterations on two ranks, the fault among them, and check what the kind must do."""
    row = Row(f"{kind.name}, {way}", model, "")
    with TemporaryDirectory() as own:
        given = (kind.name, way, model, seed, iterations, folder)
        found = ranks(train, Path(own), *given, timeout=TIMEOUT, limit=LIMIT + iterations)
    for rank, each in enumerate(found):
        if isinstance(each, str):
            return row._replace(outcome=f"{WRONG}rank {rank}: {' '.join(each.split())}")
    allowed, dies = kind.ddp if way == DDP else kind.fsdp, kind.fault is killed
    endings: list[Ending] = [each for each in found if each is not None]
    wrong = [line for each in endings for line in each.faults]
    if (found[kind.at] is None) != dies or len(endings) + dies != RANKS:
        wrong.append(f"a rank has no ending: {found}")
    refused, said = [x for each in endings for x in each.refused], [x for each in endings for x in each.said]
    errors = [each.error for each in endings if each.error]
    line = next((text for text in (*refused, *said) if kind.says and kind.says in text), "")
    shares = [each.share for each in endings if each.share is not None]
    line = line or next(iter(refused), "")
    outcome = May.END if errors else May.REFUSE if refused else May.GO_ON
    if outcome == May.GO_ON and kind.says and any(kind.says in text for text in said):
        outcome = May.REPLAN
    if outcome not in allowed:
        wrong.append(f"it {outcome.name}, not {allowed}")
    if outcome == May.REFUSE and not all(kind.refusal in text for text in refused):
        wrong.append(f"the line says something else: {refused[0]}")
    if outcome == May.END:
        other = found[1 - kind.at]
        if other is None or kind.named.format(at=kind.at) not in other.error:
            wrong.append("the other rank does not name it")
        if any(each.seconds > PATIENCE for each in endings):
            wrong.append("a rank waits for long")
        line = "" if other is None else other.error
    share = max(shares, default=None)
    if share is not None and share > 1.1:
        wrong.append("slower than a fresh plan")
    words = WORDS[outcome]
    return row._replace(outcome=WRONG + ", ".join(wrong) if wrong else words, line=line, share=share)
