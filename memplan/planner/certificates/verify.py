"""Verify a schedule and its certificate: the rules, bytes, seconds and each lower bound, in exact numbers.

    python verify.py [schedule.json] certificate.json graph.json

Without a schedule the claim is that there is none. This file imports Python's standard library alone (PyYAML
if a document is YAML), and nothing of memplan. It reads from top to bottom: documents, graph, machine,
the replay of a schedule (docs/formats.md), the bounds (docs/bounds.md, "Certificates"), the answer. Documents
are as memplan writes them. All seconds are fractions: a number stands for the double that it is read as, and
nothing is rounded afterwards.

A claim is proven, or not checked, and then the answer says by whom it is; or it does not follow, which raises
`ClaimError`. Ranks that communicate and addresses are not covered: they are named.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import inf, lcm
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

FORMAT = "plan-certificate/1"
SAME = Fraction(1, 10**9)
"""Relative difference up to which a time in a document, a sum of floats, is the exact one."""
MOST_TURNS, WINDOW = 48, 8
"""Iterations replayed at most; iterations over which the growth of all queues is compared."""
DEVICE, HOST, PINNED = 0, 1, -1
PERSISTENT = ("parameter", "buffer", "optimizer_state")
AFTER, BEFORE, OPEN = range(3)
"""The side of a moment on which an operation first runs: OPEN if that differs from order to order."""


ONE = Fraction(1)


class DocumentError(Exception):
    """A document can't be read, or is not covered."""


class SubjectError(Exception):
    """Documents that do not belong together."""


class ClaimError(Exception):
    """A claim that does not follow."""


# ── documents ───────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> Any:
    """Return the data of a JSON or YAML file."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if ".json" in path.suffixes[-2:]:
            return json.loads(raw)
        import yaml

        return yaml.safe_load(raw)
    except Exception as error:  # PyYAML's errors have no class that can be named without it
        fault = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise DocumentError(f"{path}: can't be read: {fault}") from None


def check(holds: object, fault: str, kind: type[Exception] = DocumentError) -> None:
    """Raise an error unless a condition holds."""
    if not holds:
        raise kind(fault)


def seconds(value: Any) -> Fraction:
    """Return a finite number of seconds, or a rate, exactly. PyYAML reads 1e-3 as text."""
    value = float(value) if isinstance(value, str) else value
    check(type(value) in (int, float) and 0 <= value < inf, f"{value!r} is no number of seconds")
    return Fraction(float(value))


def size(value: Any) -> int:
    """Return a number of bytes."""
    check(type(value) is int and value >= 0, f"{value!r} is no number of bytes")
    return int(value)


def exact(value: str) -> Fraction:
    """Return the fraction that a text has; one with an exponent could be too large for any memory."""
    return Fraction(*map(int, value.split("/")))


def hashed(document: Any) -> str:
    """Return the SHA-256 of a document as canonical JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ── the graph ───────────────────────────────────────────────────────────────────────────────────


class Mode(NamedTuple):
    """A way to run an operation: seconds, bytes of workspace, tensors."""

    time: Fraction
    launch: Fraction
    workspace: int
    writes: tuple[int, ...]
    reads_host: tuple[int, ...]
    writes_host: tuple[int, ...]
    on_host: bool

    def needs(self, x: int) -> bool:
        """Tell whether the mode uses an input on the device."""
        return not self.on_host and x not in self.reads_host


class Graph:
    """A plan-graph/1, by indices of tensors and operations.

    inputs: per operation, what it reads or changes. once: it runs once. modes: by name; "" is the
    operation as it stands. ends: the changes in place after which it can't run. sha256: of what schedules
    depend on.
    """

    def __init__(self, document: Any) -> None:
        form = document.get("format")
        check(form == "plan-graph/1", f"the format {form!r} is not covered, 'plan-graph/1' is")
        rows, operations = document["tensors"], document["operations"]
        self.sha256 = hashed([rows, operations, document["results"]])
        self.tensor_names: list[str] = [row["name"] for row in rows]
        self.tensor = {name: x for x, name in enumerate(self.tensor_names)}
        self.sizes = [size(row["bytes"]) for row in rows]
        self.input = [row["kind"] == "input" for row in rows]
        self.persistent = [row["kind"] in PERSISTENT for row in rows]
        self.resident = [a or b for a, b in zip(self.input, self.persistent, strict=True)]
        self.results = self.indices(document["results"])
        self.names: list[str] = [row["name"] for row in operations]
        self.operation = {name: o for o, name in enumerate(self.names)}
        self.backward = [row["phase"] in ("backward", "update") for row in operations]
        self.reads = [self.indices(row.get("reads", [])) for row in operations]
        self.mutates = [self.indices(row.get("mutates", [])) for row in operations]
        self.random: list[bool] = [row.get("random", False) for row in operations]
        self.modes = [
            {name: self._mode(row, mode) for name, mode in {"": {}, **row.get("modes", {})}.items()}
            for row in operations
        ]
        self.once = [not row.get("recompute", True) or bool(row.get("mutates")) for row in operations]
        self.inputs = [tuple({*reads, *self.mutates[o]}) for o, reads in enumerate(self.reads)]
        self.producers = self._by_tensor([modes[""].writes for modes in self.modes])
        self.users, self.mutators = self._by_tensor(self.inputs), self._by_tensor(self.mutates)
        self.ends = [
            {c for x in (*self.reads[o], *modes[""].writes) for c in self.mutators[x] if c > o}
            for o, modes in enumerate(self.modes)
        ]
        check(len(self.tensor) == len(rows) and len(self.operation) == len(operations), "a name stands twice")
        for x, name in enumerate(self.tensor_names):
            made = max(self.producers[x], default=-1 if self.resident[x] else len(operations))
            used = min(self.users[x], default=len(operations) + (x not in self.results))
            check(made < used, f"the graph uses {name} before it is made")
            check(not (self.resident[x] and self.producers[x]), f"the graph writes {name}")

    def _mode(self, row: Any, changed: Any) -> Mode:
        """Return a mode of an operation; what it does not change is the operation's."""
        fields: dict[str, Any] = {"launch": 0, "workspace": 0, **row}
        fields |= {"reads_host": [], "writes_host": [], **changed}
        check(fields.get("queue", "compute") == "compute", "operations of the queue comm are not covered")
        places = [self.indices(fields.get(key, [])) for key in ("writes", "reads_host", "writes_host")]
        times = seconds(fields["time"]), seconds(fields["launch"])
        return Mode._make([*times, size(fields["workspace"]), *places, fields.get("on") == "host"])

    def indices(self, names: list[str]) -> tuple[int, ...]:
        check(len({*names}) == len(names), f"{names} names a tensor twice")
        return tuple(self.tensor[name] for name in names)

    def _by_tensor(self, rows: Sequence[tuple[int, ...]]) -> list[list[int]]:
        found = [list[int]() for _ in self.sizes]
        for o, row in enumerate(rows):
            for x in row:
                found[x].append(o)
        return found


# ── the machine ─────────────────────────────────────────────────────────────────────────────────


class Link(NamedTuple):
    """A link between two neighbouring memories: bytes/s, seconds, pairs of bytes and seconds."""

    rate: Fraction
    latency: Fraction
    measured: list[tuple[int, Fraction]]

    @staticmethod
    def of(row: Any) -> Link:
        row = row if isinstance(row, dict) else {"rate": row}
        check(seconds(row["rate"]), "a link has the rate 0")
        measured = [(size(count), seconds(spent)) for count, spent in row.get("measured", [])]
        return Link(seconds(row["rate"]), seconds(row.get("latency", 0)), measured)

    def seconds(self, count: int) -> Fraction:
        """Return the seconds of one copy: on the line between the two sizes around it, or beyond them."""
        start, spent = 0, self.latency
        for end, until in self.measured:
            if count <= end:
                return spent + (until - spent) * Fraction(count - start, end - start)
            start, spent = end, until
        return spent + (count - start) / self.rate


class Machine:
    """Memories in a row, and what joins them.

    limits: bytes of each memory, None for no limit; pinned: of host memory that the device may copy.
    links: by the memories that they join. shared: queue -> the queue whose turns it takes.
    """

    def __init__(self, document: Any) -> None:
        links, host = dict(document.get("links", {})), document.get("host", {})
        ways = {"write": links.get("disk_write"), "read": links.get("disk_read")}
        below = document.get("memories") or [{"name": "disk", **document.get("disk", {}), **ways}]
        self.names = ["device", "host", *(row["name"] for row in below)]
        tiers = document.get("device", {}), host, *below
        self.limits = [None if (given := row.get("capacity")) is None else size(given) for row in tiers]
        pinned = host.get("pinned")
        self.pinned = min((each for each in (self.limits[HOST], pinned) if each is not None), default=None)
        ends = [[links.get("d2h"), links.get("h2d")], *([row.get("write"), row.get("read")] for row in below)]
        found = {(m, m + 1): pair[0] for m, pair in enumerate(ends)}
        found |= {(m + 1, m): pair[1] for m, pair in enumerate(ends)}
        pinning = pinned != 0 or not all(isinstance(row, dict) and "pageable" in row for row in ends[0])
        check(pinning, "schedules that pin no host memory (pinned: 0) are not covered")
        self.links = {way: Link.of(row) for way, row in found.items() if row is not None}
        words: dict[str, Any] = {"cpu": "cpu", "d2h": (0, 1), "h2d": (1, 0)}
        for m, name in enumerate(self.names[2:], 2):
            words |= {f"{name}_write": (m - 1, m), f"{name}_read": (m, m - 1)}
        self.lanes: Any = {queue: [(queue, ONE)] for queue in words.values()}
        for number, group in enumerate(document.get("shared", [])):
            joint = group if isinstance(group, dict) else {"links": group}
            for queue in (words[name] for name in joint["links"] if name in words):
                rate = seconds(joint["rate"]) if "rate" in joint and queue in self.links else None
                self.lanes[queue].append((number, min(ONE, self.links[queue].rate / rate) if rate else ONE))


# ── the replay of a schedule ────────────────────────────────────────────────────────────────────


class Event:
    """A run or a transfer that others wait for. end: ticks. turn: its iteration. step: in the list."""

    def __init__(self, x: int, queue: Any, turn: int, step: int) -> None:
        self.x, self.queue, self.turn, self.step, self.end = x, queue, turn, step, 0


class Copy:
    """A tensor in a memory.

    got: the operations whose contributions it has. stale: the tensor was changed elsewhere.
    made: per queue the last event that made it; flight: per queue the last transfer that uses it, until
    something has waited for that.
    """

    def __init__(self, got: set[int]) -> None:
        self.got, self.stale = got, False
        self.made, self.flight = dict[Any, Event](), dict[Any, Event]()


class Ledger:
    """The bytes of one memory: used has those of deletes that wait for transfers, settled has not.

    pending: these deletes, oldest first. rests: what allocations that waited for one have left of it.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = inf if limit is None else limit
        self.used = self.settled = self.peak = self.least = 0
        self.pending, self.rests = deque[tuple[int, list[Event]]](), deque[tuple[int, list[Event]]]()

    def claim(self, kept: int, transient: int) -> list[Event]:
        """Allocate, and return what the allocation waits for."""
        waits: list[Event] = []
        missing = self.used + sum(count for count, _events in self.rests) + kept + transient - self.limit
        while missing > 0:
            if self.rests:
                count, events = self.rests.popleft()
            else:
                count, events = self.pending.popleft()
                self.used -= count
            if count > missing:
                self.rests.appendleft((int(count - missing), events))
            missing -= count
            waits += events
        self.used, self.settled = self.used + kept, self.settled + kept
        self.peak = max(self.peak, self.used + transient)
        self.least = max(self.least, self.settled + transient)
        return waits

    def free(self, count: int, events: list[Event]) -> None:
        self.settled -= count
        if events and count:
            self.pending.append((count, events))
        else:
            self.used -= count

    def settle(self, turn: int) -> None:
        """End the deletes that wait for transfers of earlier iterations alone."""
        for entries in (self.pending, self.rests):
            for entry in [each for each in entries if all(event.turn < turn for event in each[1])]:
                entries.remove(entry)
                self.used -= entry[0] if entries is self.pending else 0


class Replay:
    """The iterations of a schedule, one after the other, by the rules of plan-schedule/1.

    Queues are "compute", "cpu", and pairs of memories. figures: time (a fraction) and bytes.
    """

    def __init__(self, graph: Graph, machine: Machine, budget: int | None, document: Any) -> None:
        self.graph, self.machine, self.turn, self.step = graph, machine, 0, -1
        parsed = [self._parse(row) for row in document["steps"]]
        self.steps = [each[:3] for each in parsed]
        self.places = self._places(document.get("initial") or {})
        limits = list(machine.limits)
        limits[DEVICE] = min((each for each in (limits[DEVICE], budget) if each is not None), default=None)
        self.ledgers = [Ledger(limit) for limit in (*limits, machine.pinned)]
        self.memories = range(len(limits))
        self.copies: dict[tuple[int, int], Copy] = {}
        self.pinned_births, self.pinned = self._pinned(), set[int]()
        for x, memories in self.places.items():
            for memory in memories:
                self._allocate(memory, graph.sizes[x], 0, [])
                self._pin(x, memory, -1, [])
                self.copies[memory, x] = Copy({*graph.producers[x]})
        ticks = lcm(*(part.denominator for each in parsed for part in each[3:]))
        self.spans = [(int(span * ticks), int(launch * ticks)) for *_step, span, launch in parsed]
        self.free: dict[Any, Any] = defaultdict(int)
        self.thread, self.landed = 0, [0, 0]
        self.figures: dict[str, Any] = {"time": self._period() / ticks}
        device, host, disk, *_deeper, pinned = self.ledgers
        self.figures |= {"peak": device.peak, "host_peak": host.peak, "disk_peak": disk.peak}
        self.figures |= {"pinned_peak": pinned.peak, "least_budget": device.least}
        self.figures["least_pinned"] = pinned.least

    # ── what the schedule says ──────────────────────────────────────────────────────────────────

    def _parse(self, row: list[str]) -> tuple[str, int, Any, Fraction, Fraction]:
        """Return verb, operation or tensor; mode, memory or pair of memories; seconds, also of the launch."""
        verb, name, names = row[0], row[1], self.machine.names
        check(2 <= len(row) <= 3, f"a step has two or three words, not {row}")
        if verb == "compute":
            o, word = self.graph.operation[name], row[2] if len(row) > 2 else ""
            return verb, o, word, self.graph.modes[o][word].time, self.graph.modes[o][word].launch
        memory = names.index(row[2]) if len(row) > 2 else HOST if verb == "offload" else DEVICE
        sources = {"offload": memory - 1, "prefetch": memory + 1}
        where: Any = memory if verb == "delete" else (sources[verb], memory)
        link = self.machine.links.get(where)
        span = Fraction(0) if link is None else link.seconds(self.graph.sizes[self.graph.tensor[name]])
        return verb, self.graph.tensor[name], where, span, Fraction(0)

    def _places(self, initial: dict[str, list[str]]) -> dict[int, tuple[int, ...]]:
        graph, names = self.graph, self.machine.names
        places: dict[int, tuple[int, ...]] = {x: (DEVICE,) for x, here in enumerate(graph.resident) if here}
        for word, tensors in initial.items():
            parts = names[:2] if word == "both" else word.split("+")
            for x in self.graph.indices(tensors):
                if not graph.persistent[x]:
                    self._refuse("initial", f"{graph.tensor_names[x]} is not persistent")
                places[x] = tuple(sorted(names.index(part) for part in parts))
        named = [name for tensors in initial.values() for name in tensors]
        check(len({*named}) == len(named), "'initial' names a tensor twice")
        return places

    def _pinned(self) -> set[tuple[int, int]]:
        """Return the copies on the host that the device reads or fills, by the step that makes them."""
        born = {x: -1 for x, memories in self.places.items() if HOST in memories}
        found = set[tuple[int, int]]()
        for step, (verb, x, where) in enumerate(self.steps):
            crossing: Sequence[int] = ()
            if verb == "compute":
                mode = self.graph.modes[x][where]
                for y in mode.writes if mode.on_host else mode.writes_host:
                    born.setdefault(y, step)
                crossing = () if mode.on_host else (*mode.reads_host, *mode.writes_host)
            elif verb == "delete" and where == HOST:
                born.pop(x, None)
            elif verb != "delete":
                if where[1] == HOST:
                    born.setdefault(x, step)
                crossing = [x] if DEVICE in where else ()
            found.update((born[y], y) for y in crossing if y in born)
        for x, step in born.items():
            # A copy that stays around the end of the list is one copy of two births.
            if self.graph.persistent[x] and found & {(step, x), (-1, x)}:
                found |= {(step, x), (-1, x)}
        return found

    # ── iterations ──────────────────────────────────────────────────────────────────────────────

    def _period(self) -> Fraction:
        """Return ticks per iteration in the steady state.

        An iteration maps times x at which queues are free and events end to later ones, f(x), by sums and
        maxima: f(x + c) = f(x) + c, and f grows with x. So if f(x) <= x + p, no later iteration grows by more
        than p on average: the largest growth over some iterations is a proven period.
        """
        states, last = list[dict[Any, int]](), list[int]()
        while True:
            self._iterate()
            states.append(self._state())
            growths: list[Fraction] = []
            for back, before in enumerate(states[-2 : -2 - WINDOW : -1], 1):
                if before.keys() == states[-1].keys():
                    grown = [end - before[key] for key, end in states[-1].items()]
                    growths.append(Fraction(max(grown), back))
                    if back == 1 and grown == last:
                        return growths[0]
                    last = grown if back == 1 else last
            if growths and self.turn >= MOST_TURNS:
                return min(growths)
            check(self.turn < 2 * MOST_TURNS, "the iterations of the schedule never repeat")

    def _state(self) -> dict[Any, int]:
        """Return what the next iteration waits for, and when that ends."""
        state: dict[Any, int] = {("free", queue): end for queue, end in self.free.items()}
        state |= {"thread": self.thread, "fence": self.landed[-2], "landed": self.landed[-1]}
        waits: list[tuple[Any, Any]] = [(where, copy.made.values()) for where, copy in self.copies.items()]
        waits += [((where, "flight"), copy.flight.values()) for where, copy in self.copies.items()]
        for number, ledger in enumerate(self.ledgers):
            entries = enumerate((*ledger.pending, *ledger.rests))
            waits += [((number, place, entry[0]), entry[1]) for place, entry in entries]
        for where, events in waits:
            state |= {(where, event.queue, event.step, self.turn - event.turn): event.end for event in events}
        return state

    def _iterate(self) -> None:
        graph = self.graph
        self.ran, self.draws = set[int](), deque(o for o, draws in enumerate(graph.random) if draws)
        # No queue starts before the transfers of the iteration before the last have ended: these are over.
        self.fence = self.landed[-2]
        for copy in self.copies.values():
            copy.flight = {q: event for q, event in copy.flight.items() if event.turn >= self.turn - 1}
        for ledger in self.ledgers:
            ledger.settle(self.turn - 1)
        ends = list[int]()
        for step, (verb, x, where) in enumerate(self.steps):
            self.step = step
            if verb == "compute":
                self._compute(x, where)
            elif verb == "delete":
                self._delete(x, where)
            else:
                ends.append(self._transfer(x, where))
        self.step = -1
        self.landed.append(max(ends, default=self.landed[-1]))
        if len(self.ran) < len(graph.names):
            self._refuse("runs-all", "an operation never runs")
        if not all(any(self._readable(memory, x) for memory in self.memories) for x in graph.results):
            self._refuse("results", "a result is not there at the end")
        for x in range(len(graph.sizes)):
            there = [memory for memory in self.memories if (memory, x) in self.copies]
            stale = any(self.copies[memory, x].stale for memory in there)
            if graph.persistent[x] and (stale or tuple(there) != self.places[x]):
                self._refuse("persistent-return", f"{graph.tensor_names[x]} does not end where it began")
            for memory in there:
                if graph.input[x] and memory == DEVICE:
                    self.copies[memory, x].stale = False
                elif not graph.persistent[x]:
                    self._drop(memory, x)
        self.turn += 1

    def _compute(self, o: int, name: str) -> None:
        graph, mode = self.graph, self.graph.modes[o][name]
        memory, queue = (HOST, "cpu") if mode.on_host else (DEVICE, "compute")
        self._admit(o)
        waits, event = list[Event](), Event(-1, queue, self.turn, self.step)
        for x in graph.inputs[o]:
            where = HOST if x in mode.reads_host else memory
            if not self._readable(where, x):
                self._refuse("reads", f"{graph.tensor_names[x]} is not there, complete and fresh")
            self._await_producers(where, x, queue, waits)
        for x in graph.mutates[o]:
            self._await([*self.copies[memory, x].flight.values()], waits)
        kept, transient = defaultdict[int, int](int), defaultdict[int, int](int, {memory: mode.workspace})
        targets = [(HOST if mode.on_host or x in mode.writes_host else DEVICE, x) for x in mode.writes]
        for target, x in targets:
            copy = self.copies.get((target, x))
            pinned = target == HOST and (x in mode.writes_host or (self.step, x) in self.pinned_births)
            if copy is None:
                kept[target] += graph.sizes[x]
                kept[PINNED] += graph.sizes[x] * pinned
                self.pinned |= {x} if pinned else set()
            elif o in copy.got:  # recomputed alongside the copy, and dropped
                transient[target] += graph.sizes[x]
                transient[PINNED] += graph.sizes[x] * (x in mode.writes_host)
        for each in (HOST, PINNED, DEVICE):
            self._allocate(each, kept[each], transient[each], waits)
        for target, x in targets:
            copy = self.copies.setdefault((target, x), Copy(set()))
            if o not in copy.got:
                waits += copy.made.values() if copy.got else ()
                copy.got.add(o)
                if queue != "compute" or target != DEVICE:
                    copy.made[queue] = event
        for x in graph.mutates[o]:
            for other in self.memories:
                if other != memory and (other, x) in self.copies:
                    self.copies[other, x].stale = True
            self.copies[memory, x].made = {} if queue == "compute" else {queue: event}
        self._start(event, waits)

    def _admit(self, o: int) -> None:
        """Refuse a run that the order of changes, random numbers, or `recompute: false` forbids."""
        graph = self.graph
        if o in self.ran and graph.once[o]:
            self._refuse("runs-once", f"{graph.names[o]} runs a second time")
        for x in {*graph.inputs[o], *graph.modes[o][""].writes}:
            for change in graph.mutators[x]:
                if change != o and (change < o) != (change in self.ran):
                    self._refuse("side-of-change", f"{graph.names[o]}, {graph.names[change]}")
        if graph.random[o] and o not in self.ran and self.draws.popleft() != o:
            self._refuse("random-order", f"another operation draws before {graph.names[o]}")
        self.ran.add(o)

    def _transfer(self, x: int, way: tuple[int, int]) -> int:
        source, target = way
        if way not in self.machine.links:
            self._refuse("transfer-link", "the machine has no such link")
        if not self._readable(source, x):
            self._refuse("transfer-source", f"{self.graph.tensor_names[x]} is not there, complete and fresh")
        waits, event = list[Event](), Event(x, way, self.turn, self.step)
        self._await_producers(source, x, way, waits)
        if (target, x) in self.copies:
            self._await([*self.copies[target, x].flight.values()], waits)
        else:
            self._allocate(target, self.graph.sizes[x], 0, waits)
            self._pin(x, target, self.step, waits)
        made = self.copies.setdefault((target, x), Copy(set()))
        made.got, made.stale, made.made[way] = {*self.copies[source, x].got}, False, event
        for memory in way:
            self.copies[memory, x].flight[way] = event
        return self._start(event, waits)

    def _delete(self, x: int, memory: int) -> None:
        name = self.graph.tensor_names[x]
        if self.graph.input[x] or (memory, x) not in self.copies:
            self._refuse("delete", f"{name} is an input, or not there")
        others = (self._readable(other, x) for other in self.memories if other != memory)
        if self.graph.persistent[x] and self._readable(memory, x) and not any(others):
            self._refuse("delete-last-copy", f"{name} has its last fresh copy there")
        self._drop(memory, x)

    def _drop(self, memory: int, x: int) -> None:
        events = [*self.copies.pop((memory, x)).flight.values()]
        self.ledgers[memory].free(self.graph.sizes[x], events)
        if memory == HOST and x in self.pinned:
            self.pinned.remove(x)
            self.ledgers[PINNED].free(self.graph.sizes[x], events)

    # ── waiting and memory ──────────────────────────────────────────────────────────────────────

    def _readable(self, memory: int, x: int) -> bool:
        copy = self.copies.get((memory, x))
        return copy is not None and not copy.stale and len(copy.got) == len(self.graph.producers[x])

    def _await_producers(self, memory: int, x: int, queue: Any, waits: list[Event]) -> None:
        """Wait for what made a copy: its transfer is over then, on the device if the compute queue waits."""
        for way, event in self.copies[memory, x].made.items():
            waits.append(event)
            for side in (memory, way[0]) if isinstance(way, tuple) else ():
                if side != DEVICE or queue == "compute":
                    self._land(side, event)

    def _await(self, events: Sequence[Event], waits: list[Event]) -> None:
        """Wait for transfers: they are over then, for all copies of their tensors."""
        waits += events
        for event in events:
            for memory in self.memories:
                self._land(memory, event)

    def _land(self, memory: int, event: Event) -> None:
        copy = self.copies.get((memory, event.x))
        if copy is not None and copy.flight.get(event.queue) is event:
            del copy.flight[event.queue]

    def _allocate(self, of: int, kept: int, transient: int, waits: list[Event]) -> None:
        ledger = self.ledgers[of]
        if ledger.settled + kept + transient > ledger.limit:
            where = "pinned memory" if of == PINNED else self.machine.names[of]
            self._refuse("capacity", f"the {where} would hold {ledger.settled + kept + transient:,} bytes")
        self._await(ledger.claim(kept, transient), waits)

    def _pin(self, x: int, memory: int, step: int, waits: list[Event]) -> None:
        if memory == HOST and (step, x) in self.pinned_births:
            self.pinned.add(x)
            self._allocate(PINNED, self.graph.sizes[x], 0, waits)

    def _start(self, event: Event, waits: list[Event]) -> int:
        """Start a step on its queue when all that it waits for has ended; return its end."""
        queue, (span, launch) = event.queue, self.spans[self.step]
        lanes = self.machine.lanes.get(queue, [(queue, ONE)])
        self.thread = max(self.thread, self.fence) + launch if launch else self.thread
        after = 0 if isinstance(queue, tuple) else self.thread
        after = self.free["compute"] if isinstance(queue, tuple) and DEVICE in queue else after
        busy = (self.free[lane] for lane, _part in lanes)
        start = max([*busy, self.fence, after, *(wait.end for wait in waits)])
        self.free |= {lane: start + part * span for lane, part in lanes}
        event.end = start + span
        return event.end

    def _refuse(self, rule: str, fault: str) -> NoReturn:
        place = f"steps[{self.step}]" if self.step >= 0 else "the schedule"
        raise ClaimError(f"{place} breaks the rule '{rule}': {fault}")


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────


def fewest_seconds(graph: Graph) -> Fraction:
    """Return the seconds of all operations on the device, or of their launches, each in its fastest mode."""
    times = (min(Fraction(0) if m.on_host else m.time for m in modes.values()) for modes in graph.modes)
    launches = (min(mode.launch for mode in modes.values()) for modes in graph.modes)
    return max(sum(times, Fraction(0)), sum(launches, Fraction(0)))


def least_bytes(graph: Graph, machine: Machine, once: list[bool] | None = None) -> int:
    """Return bytes on the device below which there is no schedule, by the need of each operation alone.

    once: per operation whether it runs once. Then first runs are in traced order, nothing is transferred, and
    what nothing can recompute is counted from the operation that made it to its last use.
    """
    count, brought = len(graph.names), (HOST, DEVICE) in machine.links
    extra, spans, held = list[int](), list[tuple[int, int]](), [0] * (count + 1)
    for x, users in enumerate(graph.users):
        needed = any(all(mode.needs(x) for mode in graph.modes[o].values()) for o in users)
        always = graph.input[x] or (graph.persistent[x] and needed and not brought)
        extra.append(0 if always else graph.sizes[x])
        ends = [p if once and once[p] else min(graph.ends[p], default=count) for p in graph.producers[x]]
        first = min(ends, default=count) if once else count
        spans.append((first, count - 1 if x in graph.results else max(users, default=-1)))
        if first <= spans[x][1]:
            held[first] += extra[x]
            held[spans[x][1] + 1] -= extra[x]
    anywhere = (DEVICE, HOST) in machine.links or uses_host(graph)
    most, now = 0 if anywhere else sum(extra[x] for x in {*graph.results}), 0
    for o, modes in enumerate(graph.modes):
        now += held[o]
        needs = list[int]()
        for mode in modes.values():
            used = {x for x in graph.inputs[o] if mode.needs(x)} | {*mode.writes} - {*mode.writes_host}
            own = sum(extra[x] for x in used if not spans[x][0] <= o <= spans[x][1])
            needs.append(0 if mode.on_host else mode.workspace + own)
        most = max(most, now + min(needs))
    return most + sum(graph.sizes) - sum(extra)


def uses_host(graph: Graph) -> bool:
    return any(m.on_host or m.reads_host or m.writes_host for modes in graph.modes for m in modes.values())


def predecessors(graph: Graph) -> list[set[int]]:
    """Return per operation others whose first run comes before its own in every schedule."""
    found = [{p for x in inputs for p in graph.producers[x]} for inputs in graph.inputs]
    for x, changes in enumerate(graph.mutators):
        for change in changes:
            for other in {*graph.users[x], *graph.producers[x]} - {change}:
                found[max(change, other)].add(min(change, other))
    for first, then in pairwise(o for o, random in enumerate(graph.random) if random):
        found[then].add(first)
    return found


def sides(before: list[set[int]], t: int, any_order: bool) -> list[int]:
    """Return the side of the first run of t on which each operation first runs."""
    side = [OPEN if any_order else BEFORE if o < t else AFTER for o in range(len(before))]
    side[t] = AFTER
    for o in range(t + 1, len(before)):
        side[o] = AFTER if any(side[p] == AFTER for p in before[o]) else side[o]
    side[t] = BEFORE
    for o in range(t, -1, -1):
        for p in before[o] if side[o] == BEFORE else ():
            side[p] = BEFORE
    return side


def recomputation(graph: Graph, budget: int, bound: Any, once: list[bool]) -> Fraction | float:
    """Return seconds of recomputation that no schedule without transfers avoids; infinite if there is none.

    The proof has flows at some moments, as rows that end with an amount (docs/bounds.md). What is needed
    after a moment is kept, at a price for its bytes, or recomputed: that takes seconds and needs inputs. What
    comes to seconds and to bytes that can't be recomputed, less the price of all memory, is a bound.
    """
    proof, any_order = bound["proof"], bound["order"] != "file"
    unit, before, count = exact(proof["unit"]), predecessors(graph), len(graph.names)
    check(not uses_host(graph) and unit > 0, "a flow is of graphs whose operations run on the device")
    used = [graph.input[x] or (graph.persistent[x] and bool(users)) for x, users in enumerate(graph.users)]
    free = budget - sum(bytes_ for bytes_, here in zip(graph.sizes, used, strict=True) if here)
    spent, kept, rent = [0] * count, 0, Fraction(0)
    for moment in proof["moments"]:
        t, price = moment["operation"], exact(moment["price"])
        needs, asks, late = moment["needs"], moment["asks"], moment["late"]
        side, modes = sides(before, t, any_order), graph.modes[t].values()
        touched = {x for x in graph.inputs[t] if not graph.resident[x]}
        touched |= set[int].intersection(*({*mode.writes} for mode in modes))
        own = min(mode.workspace for mode in modes) + sum(graph.sizes[x] for x in touched)
        rent += price * (free - own)
        ran = [side[p] == BEFORE for p in range(count)]
        redo = [ran[p] and not once[p] and not any(ran[c] for c in graph.ends[p]) for p in range(count)]
        may = [redo[p] or side[p] == OPEN for p in range(count)]
        numbers = [each for row in (*needs, *asks, *late) for each in row]
        follows(price >= 0 and all(type(each) is int and each >= -1 for each in (t, *numbers)), "a number")
        follows(all(-1 not in (row[0], row[2]) for row in (*needs, *asks, *late)) and t >= 0, "a number")
        needed, paid, arrived, left = (defaultdict[int, int](int) for _ in range(4))
        for x, p, amount in needs:
            stuck = any(ran[q] and not redo[q] for q in graph.producers[x])
            follows(x not in touched and (stuck if p == -1 else p in graph.producers[x] and may[p]), "a need")
            paid[x] += amount
            arrived[p] += amount
        kept += arrived.pop(-1, 0)
        for p, x, amount in asks:
            follows(x in graph.inputs[p] and may[p], "an input")
            needed[x] += amount
            left[p] += amount
        for p, c, amount in late:
            follows(c >= 0 and once[p] and side[p] == side[c] == OPEN and p in before[c], "an order")
            left[p] += amount
            arrived[c] += amount
        for x, amount in paid.items():
            surely = x in graph.results or any(side[o] == AFTER for o in graph.users[x])
            follows(amount <= price * graph.sizes[x], "the price of bytes")
            follows(surely or amount <= needed[x], "what needs bytes")
        for p in {*arrived, *left}:
            follows(left[p] <= arrived[p], "what arrives")
            spent[p] += (arrived[p] - left[p]) * redo[p]
    for modes, amount in zip(graph.modes, spent, strict=True):
        follows(amount * unit <= min(mode.time for mode in modes.values()), "the seconds of an operation")
    return inf if kept > rent else (sum(spent) + kept - rent) * unit


def follows(holds: object, what: str) -> None:
    """Raise ClaimError unless a step of a proof holds."""
    check(holds, f"it does not follow: {what}", ClaimError)


# ── the answer ──────────────────────────────────────────────────────────────────────────────────


class Claim(NamedTuple):
    """A claim, its value, and who says so if it is not checked; least: the bound that is proven instead."""

    what: str
    value: float | None
    by: str = ""
    least: float | None = None

    @property
    def verdict(self) -> str:
        least = "" if self.least is None else f"; {self.least:,} is proven"
        proof = f"{self.by}, not checked{least}" if self.by else "proven"
        return f"{'no schedule' if self.value is None else f'{self.value:,}'}: {proof}"


def verify(schedule: Any, certificate: Any, graph: Any) -> list[Claim]:
    """Verify documents: a plan-schedule/1, None for that there is none; its certificate; its graph.

    Raises the errors of this file.
    """
    try:
        return [*_verify(schedule, certificate, Graph(graph), graph)]
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise DocumentError(f"a field is missing, or of another type: {error!r}") from None


def subject(schedule: Any) -> str:
    """Return the SHA-256 of a schedule's document without how it was found."""
    return hashed({key: value for key, value in schedule.items() if key != "solver"})


def _verify(schedule: Any, certificate: Any, graph: Graph, document: Any) -> Iterator[Claim]:
    check(certificate["format"] == FORMAT, f"the certificate's format is not {FORMAT!r}")
    of = certificate["refused"] if schedule is None else schedule
    check(of["graph"]["sha256"] == graph.sha256, "the schedule is of another graph", SubjectError)
    machine = Machine(of.get("machine") or document.get("machine") or {})
    if schedule is not None:
        yield from _verify_schedule(schedule, certificate, graph, machine)
    single = [graph.once[o] or backward for o, backward in enumerate(graph.backward)]
    memory = least_bytes(graph, machine)
    memory_once = 0 if machine.links or uses_host(graph) else least_bytes(graph, machine, single)
    for name, least in (("min_memory", memory), ("min_memory_once", memory_once)):
        if (value := certificate[name]["bytes"]) is not None:
            yield _claim(name, value, least, certificate[name]["by"])
    budget: int = min(certificate["budget"], machine.limits[DEVICE] or certificate["budget"])
    for place, bound in enumerate(certificate["bounds"]):
        traced, form, moves = bound["order"] == "file", bound["form"], bound["transfers"]
        repeats = bound["backward_again"]
        check(place or not schedule or (repeats and moves and not (traced or form)), "the first is for all")
        least = fewest_seconds(graph)
        if bound["proof"]:
            check(not (moves and machine.links), "a flow is of schedules without transfers")
            least += max(0, recomputation(graph, budget, bound, graph.once if repeats else single))
        if budget < memory or (budget < memory_once and traced and not repeats):
            least = inf
        words = ("traced order" if traced else "any order", "" if moves else "no transfers")
        words = (*words, "" if repeats else "backward once", form)
        yield _claim(f"lower bound ({', '.join(filter(None, words))})", bound["seconds"], least, bound["by"])


def _verify_schedule(schedule: Any, certificate: Any, graph: Graph, machine: Machine) -> Iterator[Claim]:
    check(certificate["subject"] == subject(schedule), "the certificate is another schedule's", SubjectError)
    figures = Replay(graph, machine, schedule["budget"], schedule).figures
    yield Claim("steps that keep every rule", len(schedule["steps"]))
    for name, value in schedule["predicted"].items():
        if name not in figures and value is not None and name != "lower_bound":
            yield Claim(name, value, "memplan")
        elif name in figures:
            near = SAME * figures[name] if name == "time" else 0
            follows(abs(Fraction(value or 0) - figures[name]) <= near, f"{name} {value!r}")
            yield Claim(name, value)
    follows(certificate["budget"] >= schedule["budget"], "bounds within a smaller budget")
    follows(schedule["predicted"].get("lower_bound") == certificate["bounds"][0]["seconds"], "lower_bound")


def _claim(what: str, value: float | None, least: Fraction | float, by: str) -> Claim:
    """Return a claim that something is at least `value`, None for infinite, of which `least` is proven."""
    if (inf if value is None else seconds(value)) <= float(least):
        return Claim(what, value)
    follows(by, f"{what} {value!r}: {float(least)!r} follows")
    return Claim(what, value, by, float(least))


def main(arguments: list[str]) -> int:
    """Verify files, print the claims, and return an exit code: 0, 2 documents, 5 claims, 6 another graph."""
    if len(arguments) not in (2, 3):
        sys.exit("usage: python verify.py [SCHEDULE] CERTIFICATE GRAPH")
    codes = {DocumentError: 2, ClaimError: 5, SubjectError: 6}
    try:
        documents = [None, *(read(Path(name)) for name in arguments)]
        for claim in verify(*documents[-3:]):
            print(f"{claim.what:<40} {claim.verdict}")
    except tuple(codes) as error:
        print(f"refused: {error}", file=sys.stderr)
        return codes[type(error)]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
