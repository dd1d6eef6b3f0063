"""A training graph as one rank of sharded data parallelism sees it, with gathers and scatters as operations.

    w ─▶ w/gather ─▶ w.full ─▶ forward and backward ─▶ w.grad ─▶ w.grad/scatter ─▶ w.grad.share ─▶ w/update

w and its states are this rank's shares, ⌈b/n⌉ bytes: tensors like any other, which a machine with links can
have on the host, and update there. The full weight is a result like any other: what `sharding.py` calls a
second gather is a recomputation here. Gathers and scatters are of the queue comm.

A gather comes right before the first operation that reads its weight, a scatter right after the last one that
adds to its gradient. Linear in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..draft import Draft
from ..graph import Graph, Kind, Mode, Operation, Phase
from ..machine import Machine, Peers
from .shares import name_of_rank, parts_of, share_of_workspace


def with_gathers(graph: Graph, peers: Peers, shares: Mapping[int, int] | None = None) -> Graph:
    """Return the graph of one rank of `peers.ranks`.

    shares: bytes of the shares that are of another dtype than their tensors. A weight's share is cast before
        it is gathered. A state of 0 bytes is its weight's share: nothing in addition reads or changes it.

    Of a forward pass, which has no gradients, the weights alone are spread. Raises InputError, one line, if
    gradients have no updates, or a tensor can't be spread over ranks.
    """
    return _Writer(graph, peers, shares or {}).graph()


class _Writer:
    """Writer of one graph.

    full: by weight, its gathered tensor. scattered: by gradient, its share. shares: as in `with_gathers`.
    """

    def __init__(self, graph: Graph, peers: Peers, shares: Mapping[int, int]) -> None:
        self.whole, self.peers, self.shares = graph, peers, shares
        self.parts, self.draft = parts_of(graph, peers), Draft(name_of_rank(graph, peers))
        self.full: dict[int, int] = {}
        self.scattered: dict[int, int] = {}

    def graph(self) -> Graph:
        graph, parts = self.whole, self.parts
        for x in range(len(graph.tensors)):
            name, size, kind, layer = graph.tensor(x)
            # Gradients keep their size until they are scattered: then w.grad.share is the parameter's
            # gradient.
            size = self._share(x) if x in parts.weights | parts.states else size
            self.draft.tensor(name, size, Kind.GRADIENT if x in parts.gradients else kind, layer)
        complete = dict[int, list[int]]()
        for x in sorted(parts.gradients):
            making: list[int] = [*graph.producers[x].tolist(), *graph.mutators[x].tolist()]
            complete.setdefault(max(making), []).append(x)
        for o in range(len(graph.operations)):
            operation = self._on_shares(o) if parts.on_shares[o] else self._on_full(graph.operation(o))
            self.draft.operation(**operation._asdict())
            for x in complete.get(o, ()):
                self._scatter(x)
        # The fingerprint is that of the program without gathers and scatters.
        source = {key: value for key, value in graph.source.items() if key != "fingerprint"}
        return self.draft.graph(graph.results, _without_network(graph.machine), source)

    def _scatter(self, x: int) -> None:
        name, size, _kind, layer = self.whole.tensor(x)
        self.scattered[x] = self.draft.tensor(f"{name}.share", self._share(x), Kind.PARAMETER_GRADIENT, layer)
        seconds = float(self.peers.scatters.seconds(float(size)))
        self._collective(f"{name}/scatter", Phase.BACKWARD, x, self.scattered[x], seconds)

    def _gathered(self, x: int, phase: Phase) -> int:
        """Return the full weight, which an operation of this phase is the next to read."""
        if x not in self.full:
            name, size, _kind, layer = self.whole.tensor(x)
            self.full[x] = self.draft.tensor(f"{name}.full", size, Kind.ACTIVATION, layer)
            self._collective(f"{name}/gather", phase, x, self.full[x], float(self.peers.seconds(float(size))))
        return self.full[x]

    def _share(self, x: int) -> int:
        return self.shares.get(x, self.peers.share_of(int(self.whole.tensors.bytes[x])))

    def _collective(self, name: str, phase: Phase, read: int, written: int, seconds: float) -> None:
        cast = self.peers.share_of(int(self.whole.tensors.bytes[read])) if read in self.shares else 0
        self.draft.operation(
            name,
            phase=phase,
            time=seconds,
            workspace=cast,
            reads=(read,),
            writes=(written,),
            layer=self.whole.tensors.layer[read],
            on_comm=True,
        )

    def _on_full(self, operation: Operation) -> Operation:
        """Return an operation as it reads full weights, which are gathered before it."""
        weights, phase = self.parts.weights, operation.phase
        reads = tuple(self._gathered(x, phase) if x in weights else x for x in operation.reads)
        return operation._replace(reads=reads)

    def _on_shares(self, index: int) -> Operation:
        """Return an operation as it runs on shares, in 1/n of its time."""
        operation = self.whole.operation(index)

        def part(one: Operation | Mode) -> dict[str, float | int]:
            workspace = share_of_workspace(self.whole, self.parts, index, one.workspace, self.peers)
            # The work goes with the number of elements.
            return {"time": one.time / self.peers.ranks, "workspace": workspace}

        def own(tensors: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(self.scattered.get(x, x) for x in tensors if self.shares.get(x) != 0)

        # Host variants stay: shares are tensors that the host can have.
        modes = (replace(one, reads_host=own(one.reads_host), **part(one)) for one in operation.modes)
        edges = {"reads": own(operation.reads), "mutates": own(operation.mutates), "modes": tuple(modes)}
        return operation._replace(**edges, **part(operation))


def _without_network(machine: Machine | None) -> Machine | None:
    """Return a machine without its network, whose times are those of operations here."""
    return machine and replace(machine, links=replace(machine.links, peers=None))
