"""The profiled graph: operations, the tensors between them, and what an iteration must leave.

The graph is bipartite (the papers' FB-graph): operations (cNodes) read and write tensors (aNodes).
Everything is kept in columns, so a million operations fit in memory; `Tensor` and `Operation` are
views made on demand. Operations are in the order in which eager PyTorch runs them, a valid
topological order. Meaning of every field: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .adjacency import Adjacency
from .machine import Machine, Peers


class Kind(IntEnum):
    """The role of a tensor in training."""

    # The order counts: ranges of kinds are compared, and saved programs hold the numbers.
    INPUT = 0
    PARAMETER = 1
    BUFFER = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    GRADIENT = 5
    PARAMETER_GRADIENT = 6

    @property
    def word(self) -> str:
        return self.name.lower()


class Phase(IntEnum):
    """The part of the iteration an operation belongs to."""

    FORWARD = 0
    LOSS = 1
    BACKWARD = 2
    UPDATE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Mode:
    """An execution variant of an operation, with the fields it changes already filled in.

    time: seconds.  workspace: bytes.  writes, reads_host: tensor indices; `reads_host` are read where
    they lie in host memory, `writes_host` (of `writes`) are made there.  on_host: runs on the CPU, inputs and
    outputs in host memory.  launch: seconds that the training thread takes to issue it.
    """

    name: str
    time: float
    workspace: int
    writes: tuple[int, ...]
    reads_host: tuple[int, ...] = ()
    on_host: bool = False
    launch: float = 0.0
    writes_host: tuple[int, ...] = ()

    @property
    def uses_host(self) -> bool:
        """Tell whether the variant runs on the CPU, or reads or writes host memory."""
        return self.on_host or bool(self.reads_host) or bool(self.writes_host)

    @property
    def made_on_host(self) -> tuple[int, ...]:
        """Return the tensors that the variant writes in host memory."""
        return self.writes if self.on_host else self.writes_host


class Tensor(NamedTuple):
    """One tensor, as a view for reading."""

    name: str
    bytes: int
    kind: Kind
    layer: str | None


class Operation(NamedTuple):
    """One operation, as a view for reading; `reads`, `writes`, `mutates` are tensor indices."""

    name: str
    phase: Phase
    time: float
    workspace: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    mutates: tuple[int, ...]
    recompute: bool
    random: bool
    layer: str | None
    modes: tuple[Mode, ...]
    launch: float = 0.0
    on_comm: bool = False


@dataclass(frozen=True, eq=False)
class Tensors:
    """The tensor columns, one entry per tensor. bytes: int64. kind: uint8, values of `Kind`.

    spread: the tensors that lie on the device or, in shares, on all ranks; empty outside of sharded training.
    shares: bytes of a rank's share of spread tensors whose shares are of another dtype than they are.
    stays: tensors that may not be in host memory or below, none of them spread; no file has them.
    """

    name: Sequence[str]
    bytes: NDArray[np.int64]
    kind: NDArray[np.uint8]
    layer: Sequence[str | None]
    spread: frozenset[int] = frozenset()
    shares: Mapping[int, int] = field(default_factory=dict[int, int])
    stays: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.name)

    def share_of(self, x: int, peers: Peers) -> int:
        """Return the bytes of each rank's share of a spread tensor."""
        return self.shares[x] if x in self.shares else peers.share_of(int(self.bytes[x]))


@dataclass(frozen=True, eq=False)
class Operations:
    """The operation columns, one entry per operation, in traced order.

    time, launch: float64, seconds.  workspace: int64, bytes.  phase: uint8, values of `Phase`.
    recompute, random: bool.  reads, writes, mutates: tensor indices.  modes: only operations with any.
    comm: the operations of the queue comm, collectives between ranks; all others are the compute queue's.
    """

    name: Sequence[str]
    phase: NDArray[np.uint8]
    time: NDArray[np.float64]
    workspace: NDArray[np.int64]
    reads: Adjacency
    writes: Adjacency
    mutates: Adjacency
    recompute: NDArray[np.bool_]
    random: NDArray[np.bool_]
    layer: Sequence[str | None]
    modes: Mapping[int, tuple[Mode, ...]]
    launch: NDArray[np.float64]
    comm: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.name)


class Structure:
    """The identity of a graph's operations, tensors and results, without bytes, times and workspaces."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A plan-graph/1 or 2. `results`: indices of the tensors that must exist when the iteration ends."""

    name: str
    tensors: Tensors
    operations: Operations
    results: Sequence[int]
    machine: Machine | None = None
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def share_structure(self, other: Graph) -> Graph:
        """Return this graph with what another one, of the same operations on the same tensors, has computed
        of these. They may differ in bytes, times, workspaces and variants.
        """
        # `structure` is created now if it is missing, so that both graphs have one object.
        known = {**vars(other), "structure": other.structure}
        vars(self).update({name: known[name] for name in _OF_STRUCTURE if name in known})
        return self

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.operations)} operations, {len(self.tensors)} tensors>"

    def tensor(self, index: int) -> Tensor:
        t = self.tensors
        return Tensor(t.name[index], int(t.bytes[index]), Kind(int(t.kind[index])), t.layer[index])

    def operation(self, index: int) -> Operation:
        o = self.operations
        return Operation(
            name=o.name[index],
            phase=Phase(int(o.phase[index])),
            time=float(o.time[index]),
            workspace=int(o.workspace[index]),
            reads=tuple(o.reads[index].tolist()),
            writes=tuple(o.writes[index].tolist()),
            mutates=tuple(o.mutates[index].tolist()),
            recompute=bool(o.recompute[index]),
            random=bool(o.random[index]),
            layer=o.layer[index],
            modes=o.modes.get(index, ()),
            launch=float(o.launch[index]),
            on_comm=index in o.comm,
        )

    @cached_property
    def structure(self) -> Structure:
        """Return an object that this graph has in common with those that share its structure."""
        return Structure()

    @cached_property
    def tensor_index(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.tensors.name)}

    @cached_property
    def operation_index(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.operations.name)}

    @cached_property
    def producers(self) -> Adjacency:
        """Return the producers: row x holds the operations that write tensor x (its contributions), in traced
        order."""
        return self.operations.writes.transpose(len(self.tensors))

    @cached_property
    def consumers(self) -> Adjacency:
        """Return the consumers: row x holds the operations that read tensor x, in traced order, without
        `mutates`."""
        return self.operations.reads.transpose(len(self.tensors))

    @cached_property
    def mutators(self) -> Adjacency:
        """Return the mutators: row x holds the operations that change tensor x in place, in traced order."""
        return self.operations.mutates.transpose(len(self.tensors))

    @cached_property
    def inputs(self) -> Adjacency:
        """Return the inputs: row k holds what operation k reads and what it changes, each once."""
        return self.operations.reads.joined(self.operations.mutates)

    @cached_property
    def users(self) -> Adjacency:
        """Return the users: row x holds the operations that read tensor x, then those that change it, each
        once."""
        return self.consumers.joined(self.mutators)

    @cached_property
    def persistent(self) -> NDArray[np.bool_]:
        """Return per tensor whether it is a parameter, buffer or optimizer state: kept from iteration to
        iteration."""
        kind = self.tensors.kind
        # Kinds from PARAMETER to OPTIMIZER_STATE are neighbours in the enumeration.
        return (kind >= Kind.PARAMETER) & (kind <= Kind.OPTIMIZER_STATE)

    @cached_property
    def resident(self) -> NDArray[np.bool_]:
        """Return per tensor whether it is there when an iteration starts (an input or persistent)."""
        return self.persistent | (self.tensors.kind == Kind.INPUT)

    @property
    def communicates(self) -> bool:
        """Whether ranks communicate in an iteration: it has a queue comm, and is of version 2."""
        return bool(self.tensors.spread or self.operations.comm)

    @cached_property
    def spread(self) -> NDArray[np.bool_]:
        """Return per tensor whether it is spread over the ranks."""
        found = np.zeros(len(self.tensors), np.bool_)
        found[list(self.tensors.spread)] = True
        return found

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """Return per tensor whether it may not be in host memory or below."""
        found = np.zeros(len(self.tensors), np.bool_)
        found[list(self.tensors.stays)] = True
        return found

    def on_peers(self, operation: int) -> tuple[int, ...]:
        """Return what an operation uses on the peers: the spread tensors of an update.

        It reads and changes this rank's shares of them. Every other operation uses them on the device.
        """
        spread = self.tensors.spread
        if not spread or self.operations.phase[operation] != Phase.UPDATE:
            return ()
        return tuple(x for x in self.input_lists[operation] if x in spread)

    @cached_property
    def repeat_seconds(self) -> NDArray[np.float64]:
        """Return the approximate seconds that recomputing each operation adds.

        These are the device's seconds; or, if launches take longer than computations in a baseline iteration,
        the seconds of the thread that launches.
        """
        operations = self.operations
        return max(operations.time, operations.launch, key=lambda seconds: float(seconds.sum()))

    @property
    def resident_bytes(self) -> int:
        """Bytes of what is there when an iteration starts; of a spread tensor, this rank's share."""
        return int(self.tensors.bytes[self.resident & ~self.spread].sum()) + self.share_bytes

    @cached_property
    def share_bytes(self) -> int:
        """Bytes of this rank's shares of persistent spread tensors; 0 if the graph names no network."""
        peers = self.machine.links.peers if self.machine else None
        persistent: list[int] = np.flatnonzero(self.persistent & self.spread).tolist()
        return sum(self.tensors.share_of(x, peers) for x in persistent) if peers else 0

    @cached_property
    def read_lists(self) -> list[list[int]]:
        """Return `operations.reads` as Python lists, which loops over single entries read fastest."""
        return self.operations.reads.lists()

    @cached_property
    def mutate_lists(self) -> list[list[int]]:
        return self.operations.mutates.lists()

    @cached_property
    def input_lists(self) -> list[list[int]]:
        """Return `inputs` as Python lists."""
        rows = zip(self.read_lists, self.mutate_lists, strict=True)
        return [list(dict.fromkeys(reads + mutates)) for reads, mutates in rows]

    @cached_property
    def whole_contributions(self) -> list[int]:
        """Return per tensor the set of all its contributions: bit k for its k-th producer in traced order.

        A tensor without producers is one contribution, there from the start.
        """
        return [(1 << max(1, count)) - 1 for count in self.producers.counts().tolist()]

    @cached_property
    def contribution_numbers(self) -> NDArray[np.int64]:
        """Return per entry of `operations.writes` how many operations before it write the same tensor."""
        order = np.argsort(self.operations.writes.columns, kind="stable")
        producers, numbers = self.producers, np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order)) - producers.start[:-1].repeat(producers.counts())
        return numbers

    @cached_property
    def _default_contributions(self) -> list[list[tuple[int, int]]]:
        numbers = iter(self.contribution_numbers.tolist())
        return [[(x, 1 << next(numbers)) for x in row] for row in self.operations.writes]

    def contributions(self, operation: int, mode: int = 0) -> list[tuple[int, int]]:
        """Return what a run produces: pairs (tensor, its contribution as a bit).

        mode: 0, or k for the k-th.
        """
        made = self._default_contributions[operation]
        if mode == 0:
            return made
        writes = self.operations.modes[operation][mode - 1].writes
        # A variant's contribution has the bit that the operation's own has.
        return [(tensor, bit) for tensor, bit in made if tensor in writes]

    def seconds(self, operation: int, mode: int = 0) -> float:
        """Return the seconds that a run takes. mode: 0, or k for the k-th."""
        if mode == 0:
            # item(): a Python float, which loops use faster than NumPy's scalars.
            return self.operations.time.item(operation)
        return self.operations.modes[operation][mode - 1].time

    def launch(self, operation: int, mode: int = 0) -> float:
        """Return the seconds that the training thread takes to issue a run. mode: 0, or k for the k-th."""
        if mode == 0:
            return self.operations.launch.item(operation)
        return self.operations.modes[operation][mode - 1].launch

    def workspace(self, operation: int, mode: int = 0) -> int:
        """Return the bytes that a run takes besides its inputs and outputs. mode: 0, or k for the k-th."""
        if mode == 0:
            return self.operations.workspace.item(operation)
        return self.operations.modes[operation][mode - 1].workspace

    def on_host(self, operation: int, mode: int) -> bool:
        """Tell whether a run takes place on the CPU."""
        return mode != 0 and self.operations.modes[operation][mode - 1].on_host

    def made_on_host(self, operation: int, mode: int) -> tuple[int, ...]:
        """Return the tensors that a run writes in host memory. mode: 0, or k for the k-th."""
        return () if mode == 0 else self.operations.modes[operation][mode - 1].made_on_host


_OF_STRUCTURE = (
    "structure",
    "tensor_index",
    "operation_index",
    "producers",
    "consumers",
    "mutators",
    "inputs",
    "users",
    "persistent",
    "resident",
    "read_lists",
    "mutate_lists",
    "input_lists",
    "whole_contributions",
    "contribution_numbers",
    "_default_contributions",
)
"""Cached properties that depend on no figure."""
