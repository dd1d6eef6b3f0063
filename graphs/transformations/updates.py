"""Optimizer updates, added to a graph that ends with its parameter gradients.

    … B2 ─dw2─▶, B1 ─dw1─▶      results: loss, dw1, dw2
                              becomes
    … B2 ─dw2─▶ w2/update, …    results: loss          w2/update changes w2, w2.exp_avg, w2.exp_avg_sq

One operation a weight. `in-backward` it stands right behind the last operation that contributes to the
gradient or reads the weight: a tied weight changes once, when all its readers are done.
`after` it stands at the end of the file, in the order of the parameters, as `optimizer.step()` runs them.
A parameter without a gradient is frozen and stays as it is. Linear in the graph.

An update takes the bytes of the gradient over a rate: |w|_g / α_G on the device, |w|_g / α_C in its mode
`host` (Zhao, thesis, 2024, eqs. 4.20 and 4.23). AdamW has two states a parameter because `torch.optim` has:
the runtime moves those very tensors, each alone, and a checkpoint stays PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..draft import Draft
from ..errors import InputError
from ..graph import Graph, Kind, Mode, Phase

When = Literal["in-backward", "after"]

STATES: Mapping[str, tuple[str, ...]] = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw-amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "sgd": (),
    "sgd-momentum": ("momentum_buffer",),
}
"""Per optimizer the states of a parameter, by PyTorch's names."""

HOST_MODE = "host"


def with_updates(
    graph: Graph,
    *,
    optimizer: str,
    when: When,
    device_rate: float,
    host_rate: float | None = None,
    state_scale: float = 1.0,
    workspace_scale: float = 0.0,
    gradients: Mapping[int, int] | None = None,
) -> Graph:
    """The graph with updates, its results without the gradients. Tensors keep their indices.

    device_rate, host_rate: bytes of gradient per second; without a host rate there is no mode `host`.
    state_scale: bytes of each state per byte of gradient: 1 where they have one type, 2 for float32 beside
    bfloat16. workspace_scale: what an update takes beside its inputs, alike, on either side.
    gradients: per weight its gradient; by default found by name. The source's fingerprint goes: the program
    that it stands for has no updates. Raises InputError, one line.
    """
    pairs = gradients_by_name(graph) if gradients is None else gradients
    _check(graph, optimizer, pairs)
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        draft.tensor(*graph.tensor(x))
    writer = _Writer(draft, graph, STATES[optimizer], device_rate, host_rate, state_scale, workspace_scale)
    behind = _places(graph, pairs, when)
    states = {weight: writer.states(weight, gradient) for weight, gradient in pairs.items()}
    for operation in range(len(graph.operations)):
        draft.operation(**graph.operation(operation)._asdict())
        for weight in behind.get(operation, ()):
            writer.update(weight, pairs[weight], states[weight])
    updated = set(pairs.values())
    source = {key: value for key, value in graph.source.items() if key != "fingerprint"}
    source["optimizer"] = {"name": optimizer, "update": when}
    return draft.graph([x for x in graph.results if x not in updated], graph.machine, source)


def gradients_by_name(graph: Graph) -> dict[int, int]:
    """Per weight its gradient among the results: `w.grad` or `dw` is that of `w`.

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


def _check(graph: Graph, optimizer: str, pairs: Mapping[int, int]) -> None:
    if optimizer not in STATES:
        raise InputError(f"unknown optimizer {optimizer!r}: known are {', '.join(STATES)}")
    if not pairs:
        raise InputError(
            f"{graph.name}: no parameter gradient is among its results: there is nothing to update"
        )
    for weight in pairs:
        if len(graph.mutators[weight]):
            raise InputError(f"{graph.name}: {graph.tensors.name[weight]} is updated already")


def _places(graph: Graph, pairs: Mapping[int, int], when: When) -> dict[int, list[int]]:
    """Per operation the weights that are updated right behind it."""
    places: dict[int, list[int]] = {}
    for weight, gradient in pairs.items():
        place = len(graph.operations) - 1
        if when == "in-backward":
            users = (graph.producers[gradient], graph.mutators[gradient], graph.consumers[weight])
            place = max(int(row[-1]) for row in users if len(row))
        places.setdefault(place, []).append(weight)
    return places


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

    def update(self, weight: int, gradient: int, states: list[int]) -> None:
        one, size = self.graph.tensor(weight), self.draft.size_of(gradient)
        workspace = round(size * self.workspace_scale)
        modes: list[Mode] = []
        if self.host_rate is not None:
            modes.append(Mode(HOST_MODE, size / self.host_rate, workspace, (), on_host=True))
        self.draft.operation(
            f"{one.name}/update",
            time=size / self.device_rate,
            workspace=workspace,
            reads=[gradient],
            mutates=[weight, *states],
            phase=Phase.UPDATE,
            recompute=False,
            layer=one.layer,
            modes=modes,
        )
