"""Optimizer updates, added to a graph that ends with its parameter gradients.

    … B2 ─dw2─▶, B1 ─dw1─▶      results: loss, dw1, dw2
                              becomes
    … B2 ─dw2─▶ w2/update, …    results: loss          w2/update changes w2, w2.exp_avg, w2.exp_avg_sq

One operation per weight. `in-backward`: it comes right after the last operation that contributes to the
gradient or reads the weight, or changes it in forward: a tied weight changes once, when all its readers are
done.
`after`: it comes at the end of the file, in the order of the parameters, as `optimizer.step()` runs them.
A parameter without a gradient is frozen and stays as it is. Linear in the graph.

Clipped by the norm of all gradients, updates read a coefficient, which is known after all of them:

    … B2 ─dw2─▶ w2/norm, B1 ─dw1─▶ w1/norm ─▶ gradients/clip ─clip─▶ w2/update, w1/update

An update takes the bytes of the gradient over a rate: |w|_g / α_G on the device, |w|_g / α_C in its mode
`host` (Zhao, thesis, 2024, eqs. 4.20 and 4.23). AdamW has two states a parameter because `torch.optim` has:
the runtime moves those very tensors, each alone, and a checkpoint stays PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..adjacency import Indices
from ..draft import Draft
from ..errors import InputError
from ..graph import Graph, Kind, Mode, Phase

When = Literal["in-backward", "after"]


class Optimizer(NamedTuple):
    """An optimizer as a graph knows it.

    name: for the graph's `source`.
    states: names of a parameter's states, by PyTorch's names if it has them.
    """

    name: str
    states: tuple[str, ...] = ()


ADAMW, SGD = Optimizer("adamw", ("exp_avg", "exp_avg_sq")), Optimizer("sgd")

HOST_MODE = "host"

NUMBER_BYTES = 4
"""Bytes of a norm."""


def with_updates(
    graph: Graph,
    *,
    optimizer: Optimizer,
    when: When,
    device_rate: float,
    host_rate: float | None = None,
    state_scale: float = 1.0,
    workspace_scale: float = 0.0,
    gradients: Mapping[int, int] | None = None,
    clip_rate: float | None = None,
) -> Graph:
    """Return the graph with updates; its results lose the gradients. Tensors keep their indices.

    device_rate, host_rate: bytes of gradient per second; without a host rate there is no mode `host`.
    state_scale: bytes of each state per byte of gradient: 1 if they have one dtype, 2 for float32 states
    of bfloat16 weights. workspace_scale: likewise for an update's workspace, on either side.
    gradients: per weight its gradient; by default found by name. clip_rate: bytes of gradient per second at
    which the norm is computed; None does not clip, else the norm of all is a result. The source's fingerprint
    is removed: the program that it stands for has no updates. Raises InputError, one line.
    """
    pairs = gradients_by_name(graph) if gradients is None else gradients
    _check(graph, pairs)
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        draft.tensor(*graph.tensor(x))
    writer = _Writer(
        draft=draft,
        graph=graph,
        names=optimizer.states,
        device_rate=device_rate,
        host_rate=host_rate,
        state_scale=state_scale,
        workspace_scale=workspace_scale,
    )
    complete = {weight: _last(graph.producers[g], graph.mutators[g]) for weight, g in pairs.items()}
    clipped, ready = -1, dict[int, list[int]]()
    if clip_rate is not None:
        # The norm of all gradients is known after the last gradient of all.
        clipped = max(complete.values())
        for weight, place in complete.items():
            ready.setdefault(place, []).append(weight)
    later = _places(graph, complete, when, clipped)
    states = {weight: writer.states(weight, gradient) for weight, gradient in pairs.items()}
    norms: list[int] = []
    clip: tuple[int, ...] = ()
    for operation in range(len(graph.operations)):
        draft.operation(**graph.operation(operation)._asdict())
        norms += [writer.norm(weight, pairs[weight], clip_rate or 1.0) for weight in ready.get(operation, ())]
        if operation == clipped:
            clip = writer.clip(norms)
        for weight in later.get(operation, ()):
            writer.update(weight, pairs[weight], states[weight], clip[1:])
    updated = set(pairs.values())
    source = {key: value for key, value in graph.source.items() if key != "fingerprint"}
    source["optimizer"] = {"name": optimizer.name, "update": when}
    return draft.graph([*(x for x in graph.results if x not in updated), *clip[:1]], graph.machine, source)


def gradients_by_name(graph: Graph) -> dict[int, int]:
    """Return per weight its gradient among the results: `w.grad` or `dw` is that of `w`.

    Raises InputError for a gradient without a weight of such a name.
    """
    found: dict[int, int] = {}
    for x in graph.results:
        if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT:
            name = graph.tensors.name[x]
            named = (graph.tensor_index.get(w) for w in (name.removesuffix(".grad"), name.removeprefix("d")))
            weights = [w for w in named if w is not None and graph.tensors.kind[w] == Kind.PARAMETER]
            if not weights:
                raise InputError(
                    f"{graph.name}: {name} is no parameter's gradient by name, like w.grad or dw"
                )
            found[weights[0]] = x
    return dict(sorted(found.items()))


def _check(graph: Graph, pairs: Mapping[int, int]) -> None:
    if not pairs:
        raise InputError(
            f"{graph.name}: no parameter gradient is among its results: there is nothing to update"
        )
    for weight, gradient in pairs.items():
        if not set(graph.mutators[weight].tolist()).isdisjoint(graph.consumers[gradient].tolist()):
            raise InputError(f"{graph.name}: {graph.tensors.name[weight]} is updated already")


def _places(graph: Graph, complete: Mapping[int, int], when: When, clipped: int) -> dict[int, list[int]]:
    """Return per operation the weights that are updated right after it.

    complete: per weight the operation after which its gradient is complete.
    clipped: the operation after which the clipping coefficient is known, -1 without clipping.
    """
    places: dict[int, list[int]] = {}
    for weight, made in complete.items():
        place = len(graph.operations) - 1
        if when == "in-backward":
            place = max(made, _last(graph.consumers[weight], graph.mutators[weight]), clipped)
        places.setdefault(place, []).append(weight)
    return places


def _last(*rows: Indices) -> int:
    """Return the last of the operations in rows that are each increasing."""
    return max((int(row[-1]) for row in rows if len(row)), default=-1)


@dataclass(frozen=True)
class _Writer:
    """Appends to a draft that has the graph's tensors."""

    draft: Draft
    graph: Graph
    names: tuple[str, ...]
    device_rate: float
    host_rate: float | None
    state_scale: float
    workspace_scale: float

    def states(self, weight: int, gradient: int) -> list[int]:
        size = round(self.draft.size_of(gradient) * self.state_scale)
        one = self.graph.tensor(weight)
        return [
            self.draft.tensor(f"{one.name}.{name}", size, Kind.OPTIMIZER_STATE, one.layer)
            for name in self.names
        ]

    def norm(self, weight: int, gradient: int, rate: float) -> int:
        one, size = self.graph.tensor(weight), self.draft.size_of(gradient)
        norm = self.draft.tensor(f"{one.name}.grad.norm", NUMBER_BYTES, Kind.GRADIENT)
        self.draft.operation(
            f"{one.name}/norm",
            # size / rate: seconds, as bytes over bytes per second.
            time=size / rate,
            reads=[gradient],
            writes=[norm],
            phase=Phase.BACKWARD,
            layer=one.layer,
        )
        return norm

    def clip(self, norms: Sequence[int]) -> tuple[int, int]:
        """Add the clipping of gradients, and return the norm of all, and the coefficient."""
        made = tuple(self.draft.tensor(x, NUMBER_BYTES, Kind.GRADIENT) for x in ("grad_norm", "clip"))
        self.draft.operation("gradients/clip", time=0.0, reads=norms, writes=made, phase=Phase.BACKWARD)
        return made[0], made[1]

    def update(self, weight: int, gradient: int, states: list[int], clip: Sequence[int] = ()) -> None:
        one, size = self.graph.tensor(weight), self.draft.size_of(gradient)
        workspace = round(size * self.workspace_scale)
        modes: list[Mode] = []
        if self.host_rate is not None:
            modes.append(Mode(HOST_MODE, size / self.host_rate, workspace, (), on_host=True))
        self.draft.operation(
            f"{one.name}/update",
            time=size / self.device_rate,
            workspace=workspace,
            reads=[gradient, *clip],
            mutates=[weight, *states],
            phase=Phase.UPDATE,
            recompute=False,
            layer=one.layer,
            modes=modes,
        )
