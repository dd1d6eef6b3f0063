"""Random schedules for a graph: random walks that mostly take legal steps and complete, and spoilt ones."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine, Memory
from memplan.planner.schedule.schedule import (
    Initial,
    Schedule,
    ScheduleStep,
    Verb,
    compute,
    delete,
    offload,
    prefetch,
)
from reference_replay import PERSISTENT, Walk

DEVICE, HOST, DISK = Memory.DEVICE, Memory.HOST, Memory.DISK


def memories_of(graph: Graph, machine: Machine | None) -> range:
    return range(len((machine or graph.machine or Machine()).hierarchy))


def chance(random: Random, probability: float) -> bool:
    """False for the smallest numbers drawn, so that shrinking leaves the rare things out."""
    return random.random() >= 1 - probability


def random_initial(random: Random, graph: Graph, machine: Machine | None) -> Initial:
    """Places for the persistent tensors; seldom one that breaks the rule."""
    deeper = memories_of(graph, machine)[DISK + 1 :]
    combined = [(DISK, *deeper), (DEVICE, deeper[-1])] if deeper else []
    places = [(HOST,), (DISK,), (DEVICE, HOST), *((memory,) for memory in deeper), *combined]
    groups: list[tuple[tuple[int, ...], list[int]]] = []
    for x in range(len(graph.tensors)):
        if x in graph.tensors.spread and graph.tensor(x).kind in PERSISTENT:
            places_of_shares = [(HOST,), (HOST,), (DEVICE, HOST)]
            if not chance(random, 0.01):
                groups.append((random.choice(places_of_shares), [x]))
            continue
        offloaded = machine is not None and chance(random, 0.5)
        if graph.tensor(x).kind in PERSISTENT and offloaded:
            groups.append((random.choice([(HOST,), *places]), [x]))
        if chance(random, 0.002):
            groups.append((random.choice(places), [x]))
    return Initial(groups=groups)


def random_schedule(
    random: Random, graph: Graph, machine: Machine | None, initial: Initial, most: int = 60
) -> Schedule:
    """most: about how many steps."""
    steps = _Grower(random, graph, machine, initial, most).grow()
    if chance(random, 0.25):
        steps = spoil(random, graph, steps, memories_of(graph, machine))
    return Schedule.of(steps, initial)


def spoil(
    random: Random, graph: Graph, steps: list[ScheduleStep], memories: Sequence[int] = tuple(Memory)
) -> list[ScheduleStep]:
    """One to three random faults: a step left out, put in, moved or changed."""
    steps = list(steps)
    for _fault in range(random.randint(1, 3)):
        place = random.randint(0, len(steps))
        fault = random.choice(("out", "in", "swap", "twice", "change"))
        if fault == "in" or not steps:
            steps.insert(place, random_step(random, graph, memories))
        elif fault == "out":
            steps.pop(place - 1)
        elif fault == "swap":
            other = random.randrange(len(steps))
            steps[place - 1], steps[other] = steps[other], steps[place - 1]
        elif fault == "twice":
            steps.insert(place, random.choice(steps))
        else:
            steps[place - 1] = random_step(random, graph, memories)
    return steps


def random_step(random: Random, graph: Graph, memories: Sequence[int]) -> ScheduleStep:
    """Any step that can be written down, legal or not."""
    verb = random.choice(list(Verb))
    if verb == Verb.COMPUTE:
        operation = random.randrange(len(graph.operations))
        modes = len(graph.operations.modes.get(operation, ()))
        return compute(operation, random.randint(0, modes + chance(random, 0.05)))
    if not len(graph.tensors):
        return compute(0)
    tensor = random.randrange(len(graph.tensors))
    if verb == Verb.DELETE:
        return delete(tensor, random.choice(memories))
    if verb == Verb.OFFLOAD:
        return offload(tensor, random.choice(memories[HOST:]))
    return prefetch(tensor, random.choice(memories[:-1]))


class _Grower:
    """Grows a list of steps: towards a complete iteration, with random legal steps in between."""

    def __init__(
        self, random: Random, graph: Graph, machine: Machine | None, initial: Initial, most: int
    ) -> None:
        self.random, self.graph, self.most = random, graph, most
        self.walk = Walk(graph, machine, None, initial)
        self.memories = self.walk.memories
        self.transfers = [(Verb.OFFLOAD, to) for to in self.memories[HOST:]]
        self.transfers += [(Verb.PREFETCH, to) for to in self.memories[:-1]]
        self.steps: list[ScheduleStep] = []
        self.restless = random.choice((0.1, 0.5, 0.9))
        self.careless = random.choice((0.0, 0.0, 0.0, 0.1))

    def grow(self) -> list[ScheduleStep]:
        waiting = list(range(len(self.graph.operations)))
        while waiting and len(self.steps) < self.most:
            for _step in range(self.random.randint(0, 4)):
                if chance(self.random, self.restless):
                    self._wander()
            if chance(self.random, self.careless):
                self._misstep()
            operation = self.random.choice(waiting) if chance(self.random, 0.3) else waiting[0]
            if operation not in self.walk.ran and not self._run(operation) and operation == waiting[0]:
                break
            waiting = [o for o in waiting if o not in self.walk.ran]
        for x in self.graph.results:
            if not any(self.walk.readable(x, memory) for memory in self.memories):
                self._bring(x, self.random.choice((DEVICE, DEVICE, HOST)), 5)
        self._bring_home()
        return self.steps

    def _take(self, step: ScheduleStep) -> bool:
        if self.walk.violations(step):
            return False
        self.walk.take(step)
        self.steps.append(step)
        return True

    def _wander(self) -> None:
        """One random step if it is legal; a delete that would lose something needed, seldom."""
        step = random_step(self.random, self.graph, self.memories)
        if step.verb == Verb.COMPUTE and step.target not in self.walk.ran and chance(self.random, 0.7):
            return
        if step.verb == Verb.DELETE and self._needed(step.target, step.where):
            return
        self._take(step)

    def _misstep(self) -> None:
        """Put an illegal step in the list, where one is found: any broken rule as likely as another."""
        faults: dict[str, list[ScheduleStep]] = {}
        for _attempt in range(40):
            step = random_step(self.random, self.graph, self.memories)
            for rule in self.walk.violations(step):
                faults.setdefault(rule, []).append(step)
        if faults:
            self.steps.append(self.random.choice(faults[self.random.choice(sorted(faults))]))

    def _needed(self, x: int, memory: int) -> bool:
        elsewhere = any(self.walk.readable(x, m) for m in self.memories if m != memory)
        to_come = x in self.graph.results or any(
            x in (*operation.reads, *operation.mutates)
            for o, operation in enumerate(self.walk.operations)
            if o not in self.walk.ran
        )
        return to_come and chance(self.random, 0.3 if elsewhere else 0.85)

    def _run(self, operation: int, depth: int = 6) -> bool:
        """Run an operation in a random mode, its inputs brought to where it reads them."""
        modes = len(self.graph.operations.modes.get(operation, ()))
        for mode in (self.random.randint(0, modes), 0):
            step = compute(operation, mode)
            brought = [self._bring(x, memory, depth - 1) for x, memory in sorted(self.walk.inputs(step))]
            if all(brought) and self._take(step):
                return True
        return False

    def _bring(self, x: int, memory: int, depth: int) -> bool:
        """Make x readable in `memory`: copy it from next to it, or run what makes it."""
        if self.walk.readable(x, memory):
            return True
        if depth <= 0 or len(self.steps) > self.most + 20:
            return False
        for verb, to in self.random.sample(self.transfers, len(self.transfers)):
            if to == memory and self._take(ScheduleStep(verb, x, to)):
                return True
        holders = [m for m in self.memories if self.walk.readable(x, m)]
        if holders and min(abs(m - memory) for m in holders) > 1:
            above = min(holders, key=lambda m: abs(m - memory)) < memory
            towards = self._bring(x, memory - 1 if above else memory + 1, depth - 1)
            if towards and self._take((offload if above else prefetch)(x, memory)):
                return True
        for producer in sorted(self.walk.producers[x]):
            copy = self.walk.copies.get((x, memory))
            if (copy is None or producer not in copy.contributions) and self.walk.operations[
                producer
            ].recompute:
                self._run(producer, depth - 1)
        return self.walk.readable(x, memory) or (memory == HOST and self._take(offload(x)))

    def _bring_home(self) -> None:
        """Persistent tensors back to where they began, at most times; leftovers deleted, at times."""
        for x, tensor in enumerate(self.walk.tensors):
            if tensor.kind not in PERSISTENT or chance(self.random, 0.01):
                continue
            for memory in self.walk.home(x):
                self._bring(x, memory, 4)
            for memory in self.memories:
                if memory not in self.walk.home(x):
                    self._take(delete(x, memory))
        for x, memory in sorted(self.walk.copies):
            free = self.walk.tensors[x].kind not in {*PERSISTENT, Kind.INPUT} and x not in self.graph.results
            if free and chance(self.random, 0.3):
                self._take(delete(x, memory))
