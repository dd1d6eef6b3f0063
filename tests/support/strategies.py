"""Random valid graphs and machines, small and full of corner cases, and hypothesis strategies of them.

Every function draws from a `random.Random`: hypothesis hands in one that it can shrink, a benchmark a seeded
one. Sizes, times and rates are dyadic, so that both replays add without rounding. Schedules for them:
random_schedules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import JointRate, Link, Links, Machine, Peers, Replicas, Tier
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.clock import resources
from random_schedules import chance, random_initial, random_schedule
from reference_replay import Refused, replay

SIZES = (0, 1, 1, 2, 3, 5, 8)
SECONDS = (0.0, 0.5, 1.0, 1.0, 2.0, 3.5)
RATES = (0.5, 1.0, 2.0, 4.0)
LATENCIES = (0.0, 0.0, 0.25, 1.0, 3.0)
LAUNCHES = (0.0, 0.25, 0.5, 1.0, 2.0)
PERSISTENT = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
MADE = (Kind.ACTIVATION, Kind.GRADIENT, Kind.PARAMETER_GRADIENT)
RANKS = (1, 2, 2, 4, 3)


class Case(NamedTuple):
    graph: Graph
    schedule: Schedule
    budget: int | None
    machine: Machine | None


def some(random: Random, items: Sequence[int], most: int) -> list[int]:
    """Up to `most` different items, in random order."""
    return random.sample(items, random.randint(0, min(most, len(items))))


def random_graph(random: Random, most_operations: int = 7) -> Graph:
    """A valid graph: shared contributions, several outputs, changes in place, modes, random operations."""
    draft = Draft("random")
    inputs = [draft.tensor(f"i{k}", random.choice(SIZES), Kind.INPUT) for k in range(random.randint(0, 2))]
    weights = [
        draft.tensor(f"w{k}", random.choice(SIZES), random.choice(PERSISTENT))
        for k in range(random.randint(0, 3))
    ]
    made: list[int] = []
    still_written: set[int] = set()
    has_loss = False
    for o in range(random.randint(1, most_operations)):
        reads = some(random, inputs + weights + made, 3)
        mutates: list[int] = []
        if chance(random, 0.3):
            mutates = some(random, weights + made + (inputs if chance(random, 0.2) else []), 2)
        still_written -= {*reads, *mutates}
        writes = some(random, sorted(still_written), 1)
        for k in range(random.choice((0, 1, 1, 1, 2))):
            writes.append(draft.tensor(f"t{o}.{k}", random.choice(SIZES), random.choice(MADE)))
            made.append(writes[-1])
            still_written.add(writes[-1])
        is_loss = not has_loss and chance(random, 0.1)
        has_loss |= is_loss
        seconds, workspace = random.choice(SECONDS), random.choice((0, 0, 0, 1, 4))
        draft.operation(
            f"o{o}",
            time=seconds,
            workspace=workspace,
            reads=reads,
            writes=writes,
            mutates=mutates,
            phase=Phase.LOSS if is_loss else random.choice((Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)),
            recompute=not chance(random, 0.15),
            random=chance(random, 0.2),
            modes=[
                _mode(random, f"m{k}", reads, writes, mutates) for k in range(random.choice((0, 0, 0, 1, 2)))
            ],
        )
    graph = draft.graph(some(random, inputs + weights + made + made, 2) if made else [])
    graph = replace(graph, results=sorted(set(graph.results)))
    validate(graph)
    return graph


def _mode(random: Random, name: str, reads: list[int], writes: list[int], mutates: list[int]) -> Mode:
    mode = Mode(
        name,
        random.choice(SECONDS),
        random.choice((0, 0, 2)),
        tuple(some(random, writes, len(writes)) if chance(random, 0.4) else writes),
        tuple(some(random, [x for x in reads if x not in mutates], 2)) if chance(random, 0.5) else (),
        chance(random, 0.4),
    )
    below = () if mode.on_host else mode.writes
    return replace(mode, writes_host=tuple(some(random, below, 2)) if chance(random, 0.4) else ())


def random_machine(random: Random) -> Machine:
    """All links at most times; no capacities: `random_case` sets those around what the schedule takes."""
    rates = [None if chance(random, 0.1) else random.choice(RATES) for _link in range(4)]
    return Machine(links=Links(*rates))


def with_spread(random: Random, graph: Graph) -> Graph:
    """The same graph with some tensors spread over ranks, those that may be."""
    operations, persistent = graph.operations, graph.persistent
    updates = operations.phase == Phase.UPDATE
    in_host = {
        x
        for o, modes in operations.modes.items()
        for mode in modes
        for x in (
            (*graph.input_lists[o], *operations.writes[o])
            if mode.on_host
            else (*mode.reads_host, *mode.writes_host)
        )
    }
    kinds = graph.tensors.kind.copy()
    spread: list[int] = []
    for x in range(len(kinds)):
        users = {"changed": graph.mutators[x], "made": graph.producers[x]}
        legal = updates[users["changed"]].all() and not updates[users["made"]].any() and x not in in_host
        if legal and kinds[x] != Kind.INPUT and chance(random, 0.7):
            kinds[x] = random.choice((Kind.PARAMETER, Kind.OPTIMIZER_STATE)) if persistent[x] else MADE[-1]
            spread.append(x)
    apart = Random(int(graph.tensors.bytes.sum()))  # drawn apart: cases that are named by their seed stay
    wide = [x for x in spread if persistent[x] and chance(apart, 0.2)]
    shares = {x: apart.randint(0, 2 * int(graph.tensors.bytes[x])) for x in wide}
    tensors = replace(graph.tensors, kind=kinds, spread=frozenset(spread), shares=shares)
    found = replace(graph, tensors=tensors)
    validate(found)
    return found


def with_comm(random: Random, graph: Graph, share: float = 0.5) -> Graph:
    """The same graph with some operations on the queue comm, of those that may be."""
    operations, producers = graph.operations, graph.producers.counts()
    able = [
        o
        for o in range(len(operations))
        if not len(operations.mutates[o])
        and o not in operations.modes
        and not operations.random[o]
        and (producers[operations.writes[o]] == 1).all()
    ]
    chosen = frozenset(o for o in able if chance(random, share))
    found = replace(graph, operations=replace(operations, comm=chosen))
    validate(found)
    return found


def with_shared(random: Random, machine: Machine) -> Machine:
    """The same machine with links that take turns, in groups of two and more."""
    names = sorted(resources(machine.hierarchy.names))
    random.shuffle(names)
    first = random.randint(2, len(names))
    groups = [names[:first], names[first : first + random.randint(2, 3)]]
    apart = Random(" ".join(names))  # drawn apart: cases that are named by their seed stay
    joint_rates: list[JointRate] = []
    if chance(apart, 0.5):  # a link in several groups, and resources that carry several links at once
        groups = [apart.sample(names, apart.randint(2, 3)) for _ in range(apart.randint(1, 3))]
        for _ in range(apart.randint(0, 2)):
            members = [name for name in apart.sample(names, apart.randint(2, 4)) if name != "cpu"]
            rate = apart.choice((1.0, 2.0, 4.0)) * max(RATES)
            if len(members) > 1:
                joint_rates.append(JointRate(tuple(members), rate))
    shared = tuple(tuple(group) for group in groups if len(group) > 1)
    return replace(machine, shared=shared, joint_rates=tuple(joint_rates))


def with_memories(random: Random, machine: Machine, memories: int) -> Machine:
    """So many that a copy can reach, two or more, without capacities; some links are missing all the same."""
    if memories == 2:
        return replace(machine, links=replace(machine.links, disk_read=None, disk_write=None))
    names = [f"tier{place}" for place in range(3, memories)]
    rates = [(random.choice(RATES), None if chance(random, 0.1) else random.choice(RATES)) for _ in names]
    tiers = zip(names, rates, strict=True)
    deeper = [
        Tier(name, None, Link(write), None if read is None else Link(read)) for name, (write, read) in tiers
    ]
    return replace(machine, disk_name=random.choice(("disk", "cxl")), deeper=tuple(deeper))


def random_case(
    random: Random,
    most_operations: int = 7,
    memories: int = 3,
    *,
    peers: bool = False,
    shared: bool = False,
    comm: bool = False,
) -> Case:
    """A graph, a schedule for it (legal at most times), and limits at, just below or above its need.
    memories: of a machine, 2 to 8. peers: tensors are spread over ranks. shared: links take turns. comm:
    operations are collectives, of a queue of their own."""
    graph = random_graph(random, most_operations)
    if comm:
        graph = with_comm(random, graph)
    machine = random_machine(random) if peers or shared or chance(random, 0.8) else None
    if machine is not None and memories != 3:
        machine = with_memories(random, machine, memories)
    if machine is not None and peers:
        graph = with_spread(random, graph)
        network = Peers(random.choice(RATES), ranks=random.choice(RANKS)) if chance(random, 0.95) else None
        apart = Random(int(graph.tensors.bytes.sum()))  # as in with_spread
        if network is not None and chance(apart, 0.4):
            count, latency = apart.choice((2, 3, 8)), apart.choice(LATENCIES)
            network = replace(network, replicas=Replicas(apart.choice(RATES), latency, count=count))
        machine = replace(machine, links=replace(machine.links, peers=network))
    if machine is not None and shared:
        machine = with_shared(random, machine)
    initial = random_initial(random, graph, machine)
    schedule = random_schedule(random, graph, machine, initial)
    budget = None
    outcome = replay(graph, schedule, machine=machine, turns=1)
    if not isinstance(outcome, Refused):
        device, host, disk, *deeper = outcome.least_bytes
        budget = _limit(random, device)
        pinned = _limit(random, outcome.least_pinned) if chance(random, 0.5) else None
        if machine is not None:
            machine = replace(
                machine,
                device_capacity=_limit(random, device) if chance(random, 0.3) else None,
                host_capacity=_limit(random, host),
                disk_capacity=_limit(random, disk),
                pinned=pinned,
                deeper=tuple(
                    replace(tier, capacity=_limit(random, least))
                    for tier, least in zip(machine.deeper, deeper, strict=True)
                ),
            )
    if machine is not None and chance(random, 0.5):
        machine = replace(
            machine,
            links=with_latencies(random, machine.links),
            deeper=tuple(
                replace(tier, read=tier.read and replace(tier.read, latency=random.choice(LATENCIES)))
                for tier in machine.deeper
            ),
        )
    if machine is not None and chance(random, 0.3):
        machine = replace(machine, links=with_measured(random, machine.links))
    if chance(random, 0.5):
        graph = with_launches(random, graph)
    return Case(graph, schedule, budget, machine)


def with_latencies(random: Random, links: Links, latencies: Sequence[float] = LATENCIES) -> Links:
    each = (links.d2h, links.h2d, links.disk_read, links.disk_write, links.peers)
    found = (link and replace(link, latency=random.choice(latencies)) for link in each)
    d2h, h2d, disk_read, disk_write, peers = found
    assert peers is None or isinstance(peers, Peers)
    return Links(d2h, h2d, disk_read, disk_write, peers=peers)


def with_measured(random: Random, links: Links) -> Links:
    """The same links with copies that were measured at several sizes."""
    each = (links.d2h, links.h2d, links.disk_read, links.disk_write, links.peers)
    found = (link and replace(link, measured=random_measured(random, link)) for link in each)
    d2h, h2d, disk_read, disk_write, peers = found
    assert peers is None or isinstance(peers, Peers)
    return Links(d2h, h2d, disk_read, disk_write, peers=peers)


def random_measured(random: Random, link: Link) -> tuple[tuple[int, float], ...]:
    """Seconds that grow with the size, at some sizes much faster or slower than by the rate."""
    sizes, last, found = sorted(random.sample(range(1, 13), random.randint(1, 4))), link.latency, []
    for size in sizes:
        last += random.choice((0.25, 0.5, 1, 2)) * (size - (found[-1][0] if found else 0)) / link.rate
        found.append((size, last))
    return tuple(found)


def with_launches(random: Random, graph: Graph, launches: Sequence[float] = LAUNCHES) -> Graph:
    """Of operations and of their modes."""
    modes = {
        operation: tuple(replace(mode, launch=random.choice(launches)) for mode in of)
        for operation, of in graph.operations.modes.items()
    }
    launch = np.array([random.choice(launches) for _operation in graph.operations.name], np.float64)
    return replace(graph, operations=replace(graph.operations, launch=launch, modes=modes))


def _limit(random: Random, least: int) -> int:
    return max(0, least + random.choice((-1, 0, 0, 0, 1, 2, 3, 5, 9, 13)))


def cases(memories: int = 3) -> st.SearchStrategy[Case]:
    return st.randoms(use_true_random=False).map(lambda random: random_case(random, memories=memories))
