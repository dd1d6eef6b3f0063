"""A second replay of a schedule, written from docs/formats.md alone: slow, plain, with no thought of speed.

`replay` walks the list again and again, as the steady state does, with one `Copy` for every copy of a tensor
and one `Transfer` for every transfer. Nothing here is shared with memplan.planner but the steps themselves.
`Walk.violations` asks whether a step is legal without taking it, so random schedules are grown with it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Link, Machine, Memory, Peers
from memplan.planner.schedule.schedule import Initial, Schedule, ScheduleStep, Verb

DEVICE, HOST = Memory.DEVICE, Memory.HOST
PERSISTENT = {Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE}
Place = int | Literal["pinned"]
Queue = str | tuple[int, int]
"""compute, cpu, launch, peers or shared ones, or a link: from one memory to its neighbour."""


@dataclass(frozen=True)
class Accepted:
    """What the replay of a valid schedule counts.

    peaks, least_bytes: per memory, in the order of the row. least_bytes, least_pinned: the largest sums were
    every delete immediate. The rest: the simulator's.
    """

    time: float
    peaks: tuple[int, ...]
    least_bytes: tuple[int, ...]
    pinned_peak: int = 0
    least_pinned: int = 0

    @property
    def peak(self) -> int:
        return self.peaks[DEVICE]

    @property
    def least_budget(self) -> int:
        return self.least_bytes[DEVICE]


@dataclass(frozen=True)
class Refused:
    """step: index of the first bad step, None for the whole. rules: all that are broken there."""

    step: int | None
    rules: frozenset[str]


@dataclass(eq=False)
class Transfer:
    """age: turns ago. over: some step has waited for it. over_for_device: the compute queue or an allocation
    has. is_operation: a collective of the graph, which stands for all that it reads and makes; only the
    compute queue's waiting makes it over, and those before it."""

    tensor: int
    queue: Queue
    end: float
    age: int = 0
    over: bool = False
    over_for_device: bool = False
    is_operation: bool = False

    def in_flight(self, memory: int) -> bool:
        return not (self.over_for_device if memory == DEVICE else self.over)


@dataclass(eq=False)
class Collective:
    """Gathers, or scatters, that directly follow each other, as one. start: of all of them. seconds: so far.
    members: each copy made, when it was ready before, and its transfer."""

    verb: Verb
    tensors: set[int]
    start: float
    seconds: float = 0.0
    members: list[tuple[Copy, float, Transfer]] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(eq=False)
class Copy:
    """contributions: the operations whose share it holds. made_by: the transfers whose target it is.
    pinned: it crosses the link to or from the device in its life."""

    contributions: set[int]
    version: int
    ready: float = 0.0
    made_by: list[Transfer] = field(default_factory=list)
    read_by: list[Transfer] = field(default_factory=list)
    pinned: bool = False


@dataclass(eq=False)
class PendingDelete:
    bytes: int
    transfers: list[Transfer]


def replay(
    graph: Graph,
    schedule: Schedule,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
    turns: int = 24,
) -> Accepted | Refused:
    """Replay `turns` iterations of the cycle; the time is the mean of the second half of them.

    Two, where nothing moves and to launch takes no time: then all are alike.
    """
    walk = Walk(graph, machine, budget, schedule.initial, list(schedule))
    if rules := walk.initial_violations():
        return Refused(None, frozenset(rules))
    steps = list(schedule)
    seconds = 0.0
    identical = True
    ends: list[float] = []
    for turn in range(turns):
        for index, step in enumerate(steps):
            walk.index = index
            if rules := walk.violations(step):
                assert turn == 0, "a schedule that is valid once is valid for ever"
                return Refused(index, frozenset(rules))
            start, end = walk.take(step)
            if turn == 0 and step.verb != Verb.DELETE:
                seconds += end - start
                identical &= step.verb == Verb.COMPUTE and walk.queue(step) == "compute"
                identical = identical and not walk.mode(step).launch
        if rules := walk.end_violations():
            assert turn == 0
            return Refused(None, frozenset(rules))
        walk.next_turn()
        ends.append(max(walk.free.values()))
        if identical and turn == 1:
            break
    half = turns // 2
    period = seconds if identical else (ends[-1] - ends[half - 1]) / (turns - half)
    peaks, least = tuple(walk.peak.values()), tuple(walk.least_bytes.values())
    return Accepted(period, peaks, least, walk.pinned_peak, walk.least_pinned)


def seconds_of(link, size):
    """A copy of so many bytes: on the line between the two measured sizes around it, or beyond them."""
    before = (0, link.latency)
    for after in link.measured:
        if size <= after[0]:
            return before[1] + (after[1] - before[1]) * (size - before[0]) / (after[0] - before[0])
        before = after
    return before[1] + (size - before[0]) / link.rate


class Way(NamedTuple):
    """The link that a copy takes, from memory to memory; None where the machine has none."""

    source: int
    target: int
    link: Link | None


class Walk:
    """The state between two steps. steps: all of the list: it tells what copies will cross the link; by
    default none does. index: of the next step among them."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine | None,
        budget: int | None,
        initial: Initial,
        steps: Sequence[ScheduleStep] = (),
    ) -> None:
        self.steps, self.index = steps, 0
        self.tensors = [graph.tensor(x) for x in range(len(graph.tensors))]
        self.operations = [graph.operation(o) for o in range(len(graph.operations))]
        self.results = list(graph.results)
        self.spread, self.shares = graph.tensors.spread, graph.tensors.shares
        self.machine = machine or graph.machine or Machine()
        peers = self.machine.links.peers
        self.ranks = 1 if peers is None else peers.ranks
        self.tiers = self.machine.hierarchy.tiers
        self.memories = range(len(self.tiers))
        self.initial = initial
        self.limit = {m: self._capacity(m) for m in self.memories}
        if budget is not None:
            self.limit[DEVICE] = min(self.limit[DEVICE], budget)
        self.producers = {
            x: {o for o, operation in enumerate(self.operations) if x in operation.writes}
            for x in range(len(self.tensors))
        }
        self.version = [0] * len(self.tensors)
        self.ran: set[int] = set()
        self.fence = 0.0
        self.copies: dict[tuple[int, int], Copy] = {}
        for x, tensor in enumerate(self.tensors):
            if tensor.kind == Kind.INPUT or tensor.kind in PERSISTENT:
                for memory in self.home(x):
                    self.copies[x, memory] = Copy(set(), 0)
        for x, tensor in enumerate(self.tensors):
            if tensor.kind in PERSISTENT and (x, HOST) in self.copies:
                self.copies[x, HOST].pinned = self.crosses(x, 0) or self.made_across(x)
        self.pending: dict[Place, list[PendingDelete]] = {m: [] for m in (*self.memories, "pinned")}
        self.half_taken: dict[Place, list[PendingDelete]] = {m: [] for m in self.pending}
        self.transfers: dict[tuple[int, Queue], list[Transfer]] = {}
        self.collective: Collective | None = None
        self.computing = False
        self.free: dict[Queue, float] = dict.fromkeys(("compute", "cpu", "launch"), 0.0)
        self.free["peers"] = 0.0
        for above, below in pairwise(self.memories):
            self.free[above, below] = self.free[below, above] = 0.0
        self.resources: dict[Queue, list[tuple[str, float]]] = {}
        for group in self.machine.shared:
            for name in group:
                self.resources.setdefault(self._named(name), []).append((str(group), 1.0))
        for number, joint in enumerate(self.machine.joint_rates):
            for name in joint.links:
                link = self._link_named(name)
                if link is not None:
                    resource = f"{number} {joint}", link.rate / joint.rate
                    self.resources.setdefault(self._named(name), []).append(resource)
        self.free.update(dict.fromkeys((of for row in self.resources.values() for of, _part in row), 0.0))
        self.least_bytes = {m: self.live_bytes(m) for m in self.memories}
        self.peak = dict(self.least_bytes)
        self.pinned_limit = min(self.limit[HOST], inf if self.machine.pinned is None else self.machine.pinned)
        self.pinned_peak = self.least_pinned = self.pinned_bytes()

    def _named(self, name: str) -> Queue:
        """The queue that a machine file calls so."""
        if name in ("cpu", "peers"):
            return name
        if name in ("d2h", "h2d"):
            return (0, 1) if name == "d2h" else (1, 0)
        tier, way = name.rsplit("_", 1)
        lower = [each.name for each in self.tiers].index(tier)
        return (lower - 1, lower) if way == "write" else (lower, lower - 1)

    def _link_named(self, name: str) -> Link | None:
        if name == "peers":
            return self.machine.links.peers
        if not isinstance(way := self._named(name), tuple):
            return None
        source, target = way
        return self.tiers[target].write if source < target else self.tiers[source].read

    def turns(self, queue: Queue) -> list[tuple[Queue, float]]:
        """What a step holds: its queue, and each resource that the queue shares, for a part of its time."""
        return [(queue, 1.0), *self.resources.get(queue, [])]

    def hold(self, queue: Queue, start: float, seconds: float) -> float:
        for resource, part in self.turns(queue):
            self.free[resource] = start + part * seconds
        return start + seconds

    def _capacity(self, memory: int) -> float:
        capacity = self.tiers[memory].capacity
        return inf if capacity is None else capacity

    # What is where

    def home(self, x: int) -> set[int]:
        """Where a persistent tensor or an input is when an iteration starts."""
        for memories, tensors in self.initial.groups:
            if x in tensors:
                return set(memories)
        return {DEVICE}

    def present(self, x: int, memory: int) -> bool:
        return (x, memory) in self.copies

    def complete(self, x: int, memory: int) -> bool:
        return self.copies[x, memory].contributions == self.producers[x]

    def fresh(self, x: int, memory: int) -> bool:
        return self.copies[x, memory].version == self.version[x]

    def readable(self, x: int, memory: int) -> bool:
        return self.present(x, memory) and self.complete(x, memory) and self.fresh(x, memory)

    def live_bytes(self, memory: int) -> int:
        return sum(size for copy in self.copies for where, size in [self.weigh(*copy)] if where == memory)

    def weigh(self, x: int, memory: int) -> tuple[int, int]:
        """Whose bytes a copy takes, and how many: on the peers, a share of each device's."""
        size = self.tensors[x].bytes
        if x in self.spread and memory == HOST:
            networked = self.machine.links.peers is not None
            own = self.shares.get(x) if networked else None
            return DEVICE, (size + self.ranks - 1) // self.ranks if own is None else own
        return memory, size

    # What is pinned

    def pinned_bytes(self) -> int:
        return sum(self.tensors[x].bytes for (x, _memory), copy in self.copies.items() if copy.pinned)

    def crossing(self, step: ScheduleStep, x: int) -> bool:
        """Whether the step sends x over the link, or reads it over the link."""
        if x in self.spread:
            return False
        if step.verb == Verb.COMPUTE:
            o, known = step.target, 0 <= step.where <= len(self.operations[step.target].modes)
            mode = self.mode(step) if known else None
            return (
                mode is not None
                and not mode.on_host
                and x in (*mode.reads_host, *mode.writes_host)
                and o >= 0
            )
        return step.target == x and (step.verb, step.where) in ((Verb.OFFLOAD, HOST), (Verb.PREFETCH, DEVICE))

    def crosses(self, x: int, first: int) -> bool:
        """Whether a copy of x that is on the host from step `first` on will cross before it is deleted."""
        steps = [*self.steps[first:], *(self.steps if self.tensors[x].kind in PERSISTENT else ())]
        for step in steps:
            if step == ScheduleStep(Verb.DELETE, x, HOST):
                return False
            if self.crossing(step, x):
                return True
        return False

    def made_across(self, x: int) -> bool:
        """Whether the copy of x that is on the host when a turn ends has crossed in that turn."""
        crossed = False
        for step in self.steps:
            crossed = crossed or self.crossing(step, x)
            if step == ScheduleStep(Verb.DELETE, x, HOST):
                crossed = False
        return crossed

    def need_pinned(self, x: int, memory: int) -> int:
        new = memory == HOST and not self.present(x, HOST) and bool(self.steps)
        return self.tensors[x].bytes if new and self.crosses(x, self.index) else 0

    # What a computation does

    def mode(self, step: ScheduleStep) -> Mode:
        """The mode in which a compute step runs; its operation as the graph gives it is a mode, too."""
        operation = self.operations[step.target]
        if step.where == 0:
            return Mode("", operation.time, operation.workspace, operation.writes, launch=operation.launch)
        return operation.modes[step.where - 1]

    def queue(self, step: ScheduleStep) -> str:
        if self.operations[step.target].on_comm:
            return "peers"
        return "cpu" if self.mode(step).on_host else "compute"

    def inputs(self, step: ScheduleStep) -> set[tuple[int, int]]:
        """The copies that a compute step reads, those that it changes included."""
        operation, mode = self.operations[step.target], self.mode(step)
        shares = self.spread if operation.phase == Phase.UPDATE else ()
        return {
            (x, HOST if mode.on_host or x in mode.reads_host or x in shares else DEVICE)
            for x in operation.reads + operation.mutates
        }

    def outputs(self, step: ScheduleStep) -> list[tuple[int, int]]:
        """The copies that a compute step makes, or adds to."""
        mode = self.mode(step)
        return [(x, HOST if mode.on_host or x in mode.writes_host else DEVICE) for x in mode.writes]

    def need_bytes(self, step: ScheduleStep, memory: int) -> int:
        """What a compute step allocates: workspace, outputs that are not there, outputs made again."""
        mode = self.mode(step)
        need = mode.workspace if memory == (HOST if mode.on_host else DEVICE) else 0
        for x, where in self.outputs(step):
            if where == memory and (
                not self.present(x, where) or step.target in self.copies[x, where].contributions
            ):
                need += self.tensors[x].bytes
        return need

    def new_pinned(self, step: ScheduleStep) -> int:
        """What it allocates of pinned memory. What the device makes again in host memory goes there too."""
        mode, need = self.mode(step), 0
        for x, memory in self.outputs(step):
            recomputed = self.present(x, memory) and step.target in self.copies[x, memory].contributions
            if self.need_pinned(x, memory) or (recomputed and x in mode.writes_host):
                need += self.tensors[x].bytes
        return need

    # What a transfer does

    def way(self, step: ScheduleStep) -> Way:
        """From the memory above the one named down to it, or from the one below up to it."""
        target = step.where
        if step.target in self.spread:
            return Way(HOST - target, target, self.machine.links.peers) if target <= HOST else Way(0, 1, None)
        if step.verb == Verb.OFFLOAD:
            return Way(target - 1, target, self.tiers[target].write)
        return Way(target + 1, target, self.tiers[target + 1].read)

    # Which rules a step breaks

    def initial_violations(self) -> set[str]:
        rules: set[str] = set()
        named = [x for _memories, tensors in self.initial.groups for x in tensors]
        if len(set(named)) < len(named) or any(self.tensors[x].kind not in PERSISTENT for x in named):
            rules.add("initial")
        for x in self.spread:
            if self.tensors[x].kind in PERSISTENT and self.home(x) not in ({HOST}, {DEVICE, HOST}):
                rules.add("initial")
        if (
            any(self.live_bytes(m) > self.limit[m] for m in self.memories)
            or self.pinned_bytes() > self.pinned_limit
        ):
            rules.add("capacity")
        return rules

    def violations(self, step: ScheduleStep) -> set[str]:
        if step.verb == Verb.COMPUTE:
            return self._compute_violations(step)
        if step.verb == Verb.DELETE:
            return self._delete_violations(step.target, step.where)
        return self._transfer_violations(step)

    def _compute_violations(self, step: ScheduleStep) -> set[str]:
        rules: set[str] = set()
        o, operation = step.target, self.operations[step.target]
        if o in self.ran and (operation.mutates or not operation.recompute):
            rules.add("runs-once")
        if operation.random and any(
            earlier.random and e not in self.ran for e, earlier in enumerate(self.operations[:o])
        ):
            rules.add("random-order")
        touched = {*operation.reads, *operation.writes, *operation.mutates}
        for m, mutator in enumerate(self.operations):
            if touched & set(mutator.mutates) and (
                (o < m and m in self.ran) or (o > m and m not in self.ran)
            ):
                rules.add("side-of-change")
        if not 0 <= step.where <= len(operation.modes):
            return rules | {"unknown-mode"}
        for x, memory in self.inputs(step):
            if not self.present(x, memory):
                rules.add("reads-present")
                continue
            if not self.complete(x, memory):
                rules.add("reads-complete")
            if not self.fresh(x, memory):
                rules.add("reads-fresh")
        for memory in (DEVICE, HOST):
            if self.live_bytes(memory) + self.need_bytes(step, memory) > self.limit[memory]:
                rules.add("capacity")
        if self.pinned_bytes() + self.new_pinned(step) > self.pinned_limit:
            rules.add("capacity")
        return rules

    def _delete_violations(self, x: int, memory: int) -> set[str]:
        rules: set[str] = set()
        if self.tensors[x].kind == Kind.INPUT:
            rules.add("delete-input")
        if x in self.spread and self.tensors[x].kind in PERSISTENT and memory == HOST:
            rules.add("peers")
        if not self.present(x, memory):
            rules.add("delete-present")
        elif self.tensors[x].kind in PERSISTENT and self.fresh(x, memory):
            others = [m for m in self.memories if m != memory and self.present(x, m) and self.fresh(x, m)]
            if not others:
                rules.add("delete-last-copy")
        return rules

    def _transfer_violations(self, step: ScheduleStep) -> set[str]:
        rules: set[str] = set()
        source, target, link = self.way(step)
        if step.target in self.spread:
            kept = self.tensors[step.target].kind in PERSISTENT
            if (step.verb, step.where) != ((Verb.PREFETCH, DEVICE) if kept else (Verb.OFFLOAD, HOST)):
                return {"peers"}
        if link is None:
            rules.add("transfer-link")
        if not self.readable(step.target, source):
            rules.add("transfer-source")
        place, size = self.weigh(step.target, target)
        need = 0 if self.present(step.target, target) else size
        pinned = self.pinned_bytes() + self.need_pinned(step.target, target)
        if self.live_bytes(place) + need > self.limit[place] or pinned > self.pinned_limit:
            rules.add("capacity")
        return rules

    def end_violations(self) -> set[str]:
        rules: set[str] = set()
        if len(self.ran) < len(self.operations):
            rules.add("runs-all")
        if any(not any(self.readable(x, m) for m in self.memories) for x in self.results):
            rules.add("results")
        for x, tensor in enumerate(self.tensors):
            if tensor.kind in PERSISTENT:
                where = {m for m in self.memories if self.present(x, m)}
                if where != self.home(x) or not all(self.fresh(x, m) for m in where):
                    rules.add("persistent-return")
        return rules

    # What a step does

    def take(self, step: ScheduleStep) -> tuple[float, float]:
        """Take a step that breaks no rule. Returns its start and its end in seconds."""
        if self.collective and (step.verb != self.collective.verb or step.target not in self.spread):
            self.collective = None
        self.computing = step.verb == Verb.COMPUTE and self.queue(step) == "compute"
        if step.verb == Verb.COMPUTE:
            return self._compute(step)
        if step.verb == Verb.DELETE:
            self._delete(step.target, step.where)
            return 0.0, 0.0
        return self._transfer(step)

    def _compute(self, step: ScheduleStep) -> tuple[float, float]:
        mode = self.mode(step)
        queue = self.queue(step)
        read = [self.copies[key] for key in self.inputs(step)]
        waits = [copy.ready for copy in read]
        for copy in read:
            for transfer in copy.made_by:
                self._wait(transfer, queue == "compute")
        outputs = self.outputs(step)
        waits += [self.copies[x, place].ready for x, place in outputs if self._added_in_place(step, x, place)]
        changed = [(x, place) for x, place in self.inputs(step) if x in self.operations[step.target].mutates]
        for x, place in changed:
            waits += self._await_users(x, place)
        pinned = [x for x, place in outputs if self.need_pinned(x, place)]
        pinned_bytes = self.new_pinned(step)
        for_itself = self.need_bytes(step, DEVICE) if queue == "peers" else 0
        for_itself -= sum(self.tensors[x].bytes for x, place in outputs if not self.present(x, place))
        for place in (DEVICE, HOST):
            waits += self._allocate(place, self.need_bytes(step, place))
        waits += self._allocate("pinned", pinned_bytes)
        launched = self.free["launch"] = max(self.free["launch"], self.fence) + mode.launch
        if queue == "peers":  # what is issued comes after all that the compute queue was given before
            waits.append(self.free["compute"])
            launched = launched if mode.launch else 0.0
        held = (self.free[resource] for resource, _part in self.turns(queue))
        start = max([*held, self.fence, launched, *waits])
        end = self.hold(queue, start, mode.time)
        there = {x for x, place in outputs if self.present(x, place)}
        for x, place in outputs:
            if not self.present(x, place):
                self.copies[x, place] = Copy({step.target}, self.version[x], end, pinned=x in pinned)
            elif self._added_in_place(step, x, place):
                self.copies[x, place].contributions.add(step.target)
                self.copies[x, place].ready = end
        if queue == "peers":
            transfer = Transfer(-1, queue, end, is_operation=True)
            self.transfers.setdefault((-1, queue), []).append(transfer)
            for copy in read:
                copy.read_by.append(transfer)
            for x in {x for x, _place in outputs} - there:
                self.copies[x, DEVICE].made_by.append(transfer)
            if for_itself > 0:
                self.pending[DEVICE].append(PendingDelete(for_itself, [transfer]))
        for x, place in changed:
            self.version[x] += 1
            self.copies[x, place].version = self.version[x]
            self.copies[x, place].ready = end
        self.ran.add(step.target)
        return start, end

    def _added_in_place(self, step: ScheduleStep, x: int, memory: int) -> bool:
        return self.present(x, memory) and step.target not in self.copies[x, memory].contributions

    def _transfer(self, step: ScheduleStep) -> tuple[float, float]:
        x = step.target
        source, target, link = self.way(step)
        assert link is not None
        read = self.copies[x, source]
        for transfer in read.made_by:
            self._wait(transfer, False)
        there = self.present(x, target)
        waits = [read.ready]
        pinned = self.need_pinned(x, target)
        waits += self._await_users(x, target) if there else self._allocate(*self.weigh(x, target))
        waits += self._allocate("pinned", pinned)
        if DEVICE in (source, target):
            waits.append(self.free["compute"])
        size = self.tensors[x].bytes
        queue: Queue = "peers" if x in self.spread else (source, target)
        passing = size - (size + self.ranks - 1) // self.ranks if x in self.spread else size
        held = (self.free[resource] for resource, _part in self.turns(queue))
        start = max([*held, self.fence, *waits])
        seconds, latency = seconds_of(link, passing), link.latency
        if isinstance(link, Peers) and target == HOST and link.replicas:
            # A share is all-reduced: a ring passes it round twice, less one replica's part each time.
            own, count = (size + self.ranks - 1) // self.ranks, link.replicas.count
            seconds += seconds_of(link.replicas, 2 * own * (count - 1) / count)
            latency += link.replicas.latency
        former = self.collective if x in self.spread else None
        if former and seconds < 2 * latency and x not in former.tensors:
            # It begins when all that its members wait for is over, takes the latency once, and ends for all.
            former.start = max([former.start, *waits])
            former.seconds += seconds - latency
            start = former.start
        elif x in self.spread:
            former = self.collective = Collective(step.verb, set(), start, seconds)
        end = self.hold(queue, start, former.seconds if former else seconds)
        if not there:
            self.copies[x, target] = Copy(set(), 0, pinned=pinned > 0)
        made = self.copies[x, target]
        made.contributions = set(self.producers[x])
        made.version = self.version[x]
        transfer = Transfer(x, queue, end)
        if former:
            former.tensors.add(x)
            former.members.append((made, made.ready, transfer))
            for other, ready, its in former.members:
                other.ready, its.end = max(ready, end), end
        made.ready = max(made.ready, end)
        self.transfers.setdefault((x, queue), []).append(transfer)
        made.made_by.append(transfer)
        read.read_by.append(transfer)
        return start, end

    def _await_users(self, x: int, memory: int) -> list[float]:
        """Nobody writes over a copy that a transfer still uses. Returns the ends of these transfers."""
        copy = self.copies[x, memory]
        in_flight = [t for t in copy.made_by + copy.read_by if t.in_flight(memory)]
        for transfer in in_flight:
            self._wait(transfer, True)
        return [transfer.end for transfer in in_flight]

    def _delete(self, x: int, memory: int) -> None:
        copy = self.copies.pop((x, memory))
        in_flight = [t for t in copy.made_by + copy.read_by if t.in_flight(memory)]
        where, size = self.weigh(x, memory)
        if in_flight and size:
            for place in (where, "pinned") if copy.pinned else (where,):
                self.pending[place].append(PendingDelete(size, in_flight))

    def _allocate(self, memory: Place, need: int) -> list[float]:
        """Make room for `need` bytes and count them. Returns the ends of the transfers waited for."""
        waits: list[float] = []
        pending, half_taken = self.pending[memory], self.half_taken[memory]
        limit = self.pinned_limit if memory == "pinned" else self.limit[memory]
        live = self.pinned_bytes() if memory == "pinned" else self.live_bytes(memory)
        free = limit - live - sum(delete.bytes for delete in (*pending, *half_taken))
        while free < need:
            delete = half_taken.pop(0) if half_taken else pending.pop(0)
            free += delete.bytes
            if free > need:
                half_taken.insert(0, PendingDelete(int(free - need), delete.transfers))
                free = need
            for transfer in delete.transfers:
                self._wait(transfer, True)
                waits.append(transfer.end)
        counted = live + sum(delete.bytes for delete in pending) + need
        if memory == "pinned":
            self.pinned_peak, self.least_pinned = (
                max(self.pinned_peak, counted),
                max(self.least_pinned, live + need),
            )
        else:
            self.peak[memory] = max(self.peak[memory], counted)
            self.least_bytes[memory] = max(self.least_bytes[memory], live + need)
        return waits

    def _wait(self, waited_for: Transfer, on_device: bool) -> None:
        """Whoever waits for a transfer has waited for those of the same tensor before it on its queue."""
        if waited_for.is_operation and not self.computing:
            return
        for transfer in self.transfers[waited_for.tensor, waited_for.queue]:
            transfer.over = True
            transfer.over_for_device |= on_device
            if transfer is waited_for:
                break

    def next_turn(self) -> None:
        """What is neither persistent nor an input on the device vanishes, by the rule for deletes."""
        for x, memory in sorted(self.copies):
            kind = self.tensors[x].kind
            if kind == Kind.INPUT and memory == DEVICE:
                self.copies[x, memory].version = self.version[x]
            elif kind not in PERSISTENT:
                self._delete(x, memory)
        self.ran = set()
        self.collective = None
        self._age()

    def _age(self) -> None:
        """The transfers of the turn before the last are over, and every queue has waited for them."""
        for transfers in self.transfers.values():
            for transfer in transfers:
                transfer.age += 1
                if transfer.age == 2:
                    transfer.over = transfer.over_for_device = True
                    self.fence = max(self.fence, transfer.end)
        for waiting in (self.pending, self.half_taken):
            for memory, deletes in waiting.items():
                waiting[memory] = [d for d in deletes if any(t.age < 2 for t in d.transfers)]
