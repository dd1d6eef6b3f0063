"""Random schedules on the simulated device: what they give beside eager, what they take beside the plan."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transfers
from iterations import mean_square
from memplan.devices.measuring.live_bytes import blocks_of
from memplan.devices.storage import disk, host_buffers
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Machine, Memory
from memplan.model.iteration import Iteration, Updates
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.clock import Queue
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.program.graph import Cost, graph_of
from memplan.program.program import Program
from memplan.runtime.codegen.host_calls import CpuOperation
from memplan.runtime.run import over_plan, queues, streams
from memplan.runtime.run.changes import changed_residents
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import IterationResult, PlannedStep
from memplan.tracing.trace import trace
from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays
from torch import nn
from transfers import (
    MACHINE,
    absent,
    adamw,
    assert_equal,
    everything,
    holds,
    in_order,
    train_eagerly,
    wandering,
    with_modes,
)

TURNS = 3
NETS = (
    ("blocks", adamw),
    ("perceptron", adamw),
    ("tied", adamw),
    ("perceptron", None),
    ("in_place", None),
    ("random_numbers", None),
    ("unet", None),
)
"""Names and optimizers. The first are small, and have the most kinds of tensors that move."""


def net_of(seed: int) -> tuple[str, Any]:
    """Of a fault or a schedule: each net in turn, for every kind of fault."""
    return NETS[seed // len(FAULTS) % len(NETS)]


def blocks() -> Iteration:
    """All tensors are whole blocks of 512 bytes: so none is smaller than what is planned with."""
    layers = [nn.Linear(16, 128), nn.GELU(), nn.Dropout(0.3), nn.Linear(128, 128), nn.Tanh()]
    module = nn.Sequential(*layers, nn.Linear(128, 16, bias=False))
    return Iteration(module, (torch.randn(8, 16),), mean_square)


def seeded(name, optimizer) -> Iteration:
    if name != "blocks":
        return transfers.seeded(name, optimizer)
    torch.manual_seed(0)
    iteration = blocks()
    if optimizer is None:
        return iteration
    return iteration._replace(updates=Updates(optimizer(iteration.module.parameters())))


class Case(NamedTuple):
    iteration: Iteration
    program: Program
    graph: Graph
    schedule: Schedule
    budget: int | None
    machine: Machine


def case(name, optimizer, rng) -> Case:
    """In whole blocks of 512 bytes, in little room or much; runs on the CPU among the steps."""
    program = program_of(name, optimizer)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations), block_bytes=512)
    modes = with_modes(graph, program, rng).operations.modes
    kept = {i: tuple(mode for mode in of if not mode.reads_host) for i, of in modes.items()}
    kept = {i: of for i, of in kept.items() if of}
    graph = replace(graph, operations=replace(graph.operations, modes=kept))
    schedule = wandering(graph, rng) if rng.random() < 0.5 else absent(graph, in_order(graph), rng)
    figures = simulate(graph, schedule, machine=MACHINE).figures
    budget = rng.choice((None, figures.least_budget, figures.least_budget))
    machine = MACHINE
    for memory in rng.choice(((), ("host_capacity",), ("host_capacity", "disk_capacity"))):
        machine = _tight(graph, schedule, budget, machine, memory)
    if rng.random() < 0.5:
        machine = _tight(graph, schedule, budget, machine, "pinned")
    return Case(seeded(name, optimizer), program, graph, schedule, budget, machine)


def between_device_and_host(number: int) -> Case:
    """A random schedule whose copies wait for nothing but the device: no disk, no runs on the CPU."""
    name, optimizer = NETS[number % 3]
    program = program_of(name, optimizer)
    graph = graph_of(program, [Cost(1.0)] * len(program.operations), block_bytes=512)
    schedule = absent(graph, in_order(graph), random.Random(number), memories=(Memory.HOST,))
    return Case(seeded(name, optimizer), program, graph, schedule, budget=None, machine=MACHINE)


def _tight(graph: Graph, schedule: Schedule, budget: int | None, machine: Machine, memory: str) -> Machine:
    """The machine with the least of that memory, in whole blocks, with which the schedule holds."""
    least, enough = -1, 2**20
    while enough - least > 1:
        middle = (least + enough) // 2
        if holds(graph, schedule, budget, replace(machine, **{memory: 512 * middle})):
            enough = middle
        else:
            least = middle
    return replace(machine, **{memory: 512 * enough})


def planned_step(case: Case, device: SimulatedDevice, *, undo: bool = False) -> PlannedStep:
    terms = Terms(case.graph, case.budget, case.machine, device=device)
    return PlannedStep(case.iteration, case.program, case.schedule, terms, undo=undo)


def train(case: Case, step: PlannedStep, device: SimulatedDevice, turns: int = TURNS) -> Any:
    """The turns follow each other, and reads of their results; the device is waited for only at the end."""
    outcomes = []
    for turn in range(turns):
        outcome = _turn(case, step, turn)
        gradients = {name: _read(tensor, device) for name, tensor in outcome.gradients.items()}
        outcomes.append(IterationResult(_read(outcome.loss, device), gradients, {}))
        del outcome  # results on the host are held by who has them
    step.restore_to_device()
    device.synchronize()
    return outcomes, everything(case.iteration)


def _read(result: torch.Tensor, device: SimulatedDevice) -> torch.Tensor:
    """A copy that is queued, as what a user computes with it; of what is on the host at once."""
    if not device.has(result):
        return result.clone()
    made, alias = torch.empty_like(result), device.alias(result)

    def copy() -> None:
        made.copy_(alias)

    device.launch(copy)
    return made


def check(name, optimizer, number: int, starved: str | None = None) -> None:
    """A random schedule: see `check_case`."""
    check_case(name, optimizer, case(name, optimizer, random.Random(number)), Lateness(number, starved))


def check_case(name, optimizer, made: Case, late: Lateness, turns: int = TURNS) -> None:
    """Bitwise what eager gives, the peaks as planned. Raises AssertionError, or what the device found."""
    device = late.device()
    figures = simulate(made.graph, made.schedule, budget=made.budget, machine=made.machine).figures
    unwatched = patch.object(
        over_plan, "WATCHED_ITERATIONS", 0
    )  # the watch waits for all jobs before an iteration
    with late.jobs(), _cpu_watched(device), unwatched:
        step = planned_step(made, device)
        assert_equal(train(made, step, device, turns), eagerly(name, optimizer, turns))
        step.place()  # all is on the device before that
        device.reset_peak()
        for turn in range(turns, turns + TURNS):  # at once after `place`: the code is there
            _turn(made, step, turn)
        device.synchronize()
        own = figures if step.cycle is None else step.cycle.figures  # less is pinned, some copies go earlier
        assert device.peak_bytes() == own.peak <= figures.peak, "device memory"
        if step.cycle is not None:
            host, arena = step.cycle.host.count.peak, step.cycle.host.arena
            of_journal = step.journal.host.arena
            pinned = device.pinned.reserved - (0 if of_journal is None else of_journal.size)
            assert host <= figures.host_peak, f"host memory: {host} of {figures.host_peak}"
            assert pinned == (0 if arena is None else arena.size), "pinned memory"
            assert pinned <= (made.machine.pinned or pinned), f"pinned memory: {pinned}"
            assert device.pinned.held == 0, "pinned memory beside the plan's"
            assert step.cycle.disk is None or step.cycle.disk.count.peak <= figures.disk_peak, "disk"
        step.restore_to_device()
        device.synchronize()
        assert_equal(([], everything(made.iteration)), ([], eagerly(name, optimizer, turns + TURNS)[1]))


@contextmanager
def _cpu_watched(device: SimulatedDevice) -> Iterator[None]:
    """The CPU may not change memory while a copy of it is on a stream."""
    compute = CpuOperation.__call__

    def computed(call: Any, host: Any, keep: Any, settings: Any, inputs: Any, results: Any) -> None:
        def checked(storage: int, block: Any) -> None:
            assert not device.pinned.in_use(block.bytes), "the CPU changes memory that is copied"
            keep(storage, block)

        compute(call, host, checked, settings, inputs, results)

    with patch.object(CpuOperation, "__call__", computed):
        yield


FAULTS: dict[str, BaseException] = {
    "allocation": torch.OutOfMemoryError("by choice"),
    "copy": RuntimeError("CUDA error: by choice"),
    "launch": KeyboardInterrupt("by choice"),
    "host": MemoryError("by choice"),
    "disk": OSError(28, "No space left, by choice"),
    "cpu": MemoryError("by choice"),
}
"""Where an iteration may fail, and with what: a copy of it, since one that was raised holds frames."""


def check_fault(name, optimizer, number: int, kind: str) -> str:
    """One fault in an iteration, somewhere; then it goes on. What came of it; "" where nothing can fail so.

    The error is told; the tensors are those of before the iteration or of after it, and of its memory nothing
    is left, though the exception is kept; the iterations that follow give what eager gives. Raises
    AssertionError where that is not so, or what the device found.
    """
    rng = random.Random(f"{number} {kind}")
    made, late = case(name, optimizer, rng), Lateness(number)
    device, states = late.device(), _states(name, optimizer)
    if made.machine.host_capacity is not None:  # what is kept to be undone is in addition to the schedule's
        kept = sum(made.program.storages[x].bytes for x in changed_residents(made.program))
        machine = replace(made.machine, host_capacity=made.machine.host_capacity + kept)
        made = made._replace(machine=machine)
    with late.jobs(), counted(device):
        step, seen = planned_step(made, device, undo=True), device.faults.seen
        _turn(made, step, 0)
        held, before = _held(step, device), seen.get(kind, 0)
        _turn(made, step, 1)
        events = seen.get(kind, 0) - before
        if not events:
            return ""
        device.faults.plan(kind, rng.randint(1, events), copy(FAULTS[kind]))
        try:
            for turn in range(2, FAULT_TURNS):
                _turn(made, step, turn)
            step.restore_to_device()
            return "the error did not reach the iterations"
        except BaseException as error:
            if not _is_by_choice(error):
                raise
        assert _held(step, device) == held, "the iteration has left memory behind"
        found = everything(made.iteration)
        turns = [turn for turn, state in enumerate(states) if same(found, state)]
        assert turns, "the tensors are of no iteration's end"
        outcomes = [_turn(made, step, turn) for turn in range(turns[0], FAULT_TURNS)]
        step.restore_to_device()
        device.synchronize()
        assert same(everything(made.iteration), states[-1]), "the iterations that followed went wrong"
        return f"{len(outcomes)} turns followed"


def _held(step: PlannedStep, device: SimulatedDevice) -> int:
    """Bytes on the device once all is back there, without what an iteration leaves to the next to delete.
    In whole blocks: a tensor may lie in one that another has left."""
    step.restore_to_device()
    device.synchronize()
    pending = () if step.cycle is None else sum(step.cycle.pending(), ())
    leaving = blocks_of(copy for copy in pending if isinstance(copy, torch.Tensor))
    return device.allocated_bytes() - sum(map(device.rounded, leaving.values()))


FAULT_TURNS = 5


def _turn(made: Case, step: PlannedStep, turn: int) -> Any:
    torch.manual_seed(turn)
    return step.run(made.iteration.inputs)


def _is_by_choice(error: BaseException | None) -> bool:
    return error is not None and ("by choice" in str(error) or _is_by_choice(error.__cause__))


def same(found: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> bool:
    return found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


@cache
def _states(name, optimizer) -> list[dict[str, torch.Tensor]]:
    """All tensors before each turn, and after the last."""
    iteration = seeded(name, optimizer)
    states = [everything(iteration)]
    for turn in range(FAULT_TURNS):
        torch.manual_seed(turn)
        run_eager(iteration)
        states.append(everything(iteration))
    return states


@contextmanager
def counted(device: SimulatedDevice) -> Iterator[None]:
    """Uses of the disk, the CPU and host memory are places for faults too."""
    move, compute, take = disk._all, CpuOperation.__call__, host_buffers.Host.memory

    def moved(*arguments: Any) -> None:
        device.faults.pass_by("disk")
        move(*arguments)

    def computed(*arguments: Any) -> None:
        device.faults.pass_by("cpu")
        compute(*arguments)

    def taken(*arguments: Any) -> Any:
        device.faults.pass_by("host")
        return take(*arguments)

    host = patch.object(host_buffers.Host, "memory", taken)
    with patch.object(disk, "_all", moved), patch.object(CpuOperation, "__call__", computed), host:
        yield


class Lateness:
    """Who is late, drawn from a seed: all a little; or one stream or thread, which does nothing while any
    other still does something. Of two seeds one has all copies given to streams by the queues' threads.

    starved: a stream's number or the name of a queue; it goes on when nothing has happened for a while.
    `delays` are the device's, `jobs` the threads'.
    """

    STARVED = ("", "", "0", "1", "2", *(queue.name.lower() for queue in Queue if queue != Queue.COMPUTE))

    def __init__(self, seed: int, starved: str | None = None) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._by_threads = seed % 2 > 0
        drawn = self._random.choice(self.STARVED)
        self.starved = drawn if starved is None else starved
        self._done = 0

    def delays(self, seed: str) -> Delays:
        delays = Delays(seed)
        delays.pause = partial(self._pause, seed.split()[1], delays.pause)
        return delays

    def device(self) -> SimulatedDevice:
        device = SimulatedDevice(self._seed, delays=self.delays)
        count = device.faults.pass_by

        def pass_by(kind: str) -> None:
            self._done += 1
            count(kind)

        device.faults.pass_by = pass_by
        return device

    @contextmanager
    def jobs(self) -> Iterator[None]:
        """The threads that give copies to streams, use files and update on the CPU are late too."""
        punctual = queues.Job.run

        def late() -> None:
            name = threading.current_thread().name.removeprefix("memplan ")
            self._pause(name, lambda: time.sleep(max(0.0, self._random.random() - 0.8) * 0.005))

        def run(job: queues.Job) -> None:
            work = job.work

            def late_work(*arguments: Any) -> None:
                late()
                work(*arguments)

            job.work = late_work
            late()
            punctual(job)

        never = patch.object(streams.StreamQueue, "goes_at_once", lambda *_, **_named: False)
        with patch.object(queues.Job, "run", run), never if self._by_threads else nullcontext():
            yield

    def _pause(self, who: str, a_little: Callable[[], None]) -> None:
        if who != self.starved:
            self._done += 1
            a_little()
            return
        before = -1
        while before != self._done:
            before = self._done
            time.sleep(0.003)


@cache
def eagerly(name, optimizer, turns: int) -> Any:
    return train_eagerly(seeded(name, optimizer), turns)


@cache
def program_of(name, optimizer) -> Program:
    program = trace(seeded(name, optimizer))
    return in_blocks(program) if name == "blocks" else program


def in_blocks(program: Program) -> Program:
    """The program with its storages in whole blocks of 512 bytes."""
    storages = [storage._replace(bytes=-(-storage.bytes // 512) * 512) for storage in program.storages]
    return replace(program, storages=storages)
