"""From an answer of O-ILP to runs and absences of whole tensors: planner/residence.py makes the schedule.

Which tensors are away between two uses follows the answer (offmate_tensors.py); so does where CPU updates
stand (offmate_updates.py). When copies start is left to planner/transfers.py, operation by operation, or
taken from the answer's steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ..graphs.graph import Graph
from ..graphs.machine import Memory
from ..planner.residence import Place, Residence
from ..planner.sequence import Run
from .milp_model import Floats
from .offmate_model import OffloadProgram
from .offmate_round import Choice
from .offmate_stocks import Activation, StateStocks, WeightStocks
from .offmate_tensors import LITTLE, Rounding, absences
from .offmate_updates import HostUpdate, start_steps


@dataclass(frozen=True)
class Stay:
    """A tensor that is off the device from step `gone` on, fetched in step `back`. Steps of the cycle."""

    tensor: int
    out: int
    gone: int
    back: int


def residence_of(
    graph: Graph, program: OffloadProgram, choice: Choice, x: Floats
) -> tuple[Residence, Residence]:
    """The decisions without places of copies, and with the answer's."""
    order = _steps(program, choice, x)
    runs = [run for step in order for run in step]
    starts = [0, *accumulate(len(step) for step in order)]
    uses = _uses(graph, runs)
    away: dict[Place, Memory] = {}
    back: dict[Place, int] = {}
    leave: dict[Place, int] = {}
    on_disk = _on_disk(graph, program, choice, x)
    for stay in _stays(graph, program, choice, x):
        at = uses.get(stay.tensor)
        if at:
            index = bisect_left(at, starts[stay.gone])
            last, following = at[index - 1], at[index % len(at)]
            away[stay.tensor, last] = Memory.DISK if stay.tensor in on_disk else Memory.HOST
            back[stay.tensor, following] = starts[stay.back]
            if stay.out >= 0 and starts[stay.out] > last:
                leave[stay.tensor, last] = starts[stay.out]
    for position, (operation, mode) in enumerate(runs):
        if mode and graph.operations.modes[operation][mode - 1].on_host:
            for state in on_disk.intersection(graph.mutate_lists[operation]):
                away[state, position] = Memory.DISK
    plain = Residence(runs, away)
    return plain, replace(plain, leave=leave, back=back)


def _steps(program: OffloadProgram, choice: Choice, x: Floats) -> list[list[Run]]:
    """The runs of every step, and of one behind all."""
    iteration, blocks = program.iteration, range(len(program.choice))
    chosen = [iteration.blocks[b][choice.options[b]] for b in blocks]
    order = [list(option.forward) for option in chosen]
    order += [list(option.backward) for option in reversed(chosen)]
    order += [list(chunk) for chunk in iteration.after]
    order.append([])
    updates: list[HostUpdate] = []
    runs: list[Run] = []
    for stocks, hosted in zip(program.weights, choice.hosted, strict=True):
        for number in sorted(hosted):
            parcel = stocks.group.parcels[number]
            assert parcel.host_run is not None
            assert parcel.update is not None
            deadline = (stocks.origin + stocks.window) % stocks.steps
            updates.append(HostUpdate(stocks.origin, deadline, parcel.host_seconds))
            runs.append(parcel.host_run)
            order[stocks.origin].remove(parcel.update)
    times = [float(x[column]) * program.second for column in program.time]
    behind: dict[int, list[Run]] = {}
    for step, number in start_steps(updates, times):
        behind.setdefault(step, []).append(runs[number])
    for step, these in behind.items():
        order[step][:0] = these
    return order


def _uses(graph: Graph, runs: Sequence[Run]) -> dict[int, list[int]]:
    """Per tensor the positions of the runs on the device that touch it."""
    uses: dict[int, list[int]] = {}
    for position, (operation, mode) in enumerate(runs):
        if mode and graph.operations.modes[operation][mode - 1].on_host:
            continue
        made = (t for t, _bit in graph.contributions(operation, mode))
        for t in {*graph.read_lists[operation], *graph.mutate_lists[operation], *made}:
            uses.setdefault(t, []).append(position)
    return uses


def _stays(graph: Graph, program: OffloadProgram, choice: Choice, x: Floats) -> Iterator[Stay]:
    """What is away, whole tensors, over all groups, states and activations."""
    rounding = Rounding()
    order = sorted(range(len(program.weights)), key=lambda g: program.weights[g].origin)
    for g in order:
        yield from _weights_away(graph, program.weights[g], choice.hosted[g], x, rounding)
    for g in order:
        hosted = choice.hosted[g]
        yield from _states_away(graph, program.weights[g], program.states[g], hosted, x, rounding)
    blocks, hosted_gradients = len(program.choice), _hosted_gradients(program, choice)
    for number, activation in enumerate(program.activations):
        if number < blocks:
            kept = program.iteration.blocks[number][choice.options[number]].kept
        else:
            kept = set(program.iteration.carried[number - blocks].tensors) - hosted_gradients
        yield from _activation_away(graph, program, activation, sorted(kept), x, rounding)


def _on_disk(graph: Graph, program: OffloadProgram, choice: Choice, x: Floats) -> set[int]:
    """Tensors that lie on the disk while they are not used; of weights, those updated on the device."""
    rounding, chosen = Rounding(), set[int]()
    for weights, states, hosted in zip(program.weights, program.states, choice.hosted, strict=True):
        parcels = weights.group.parcels
        on_device = [t for n, parcel in enumerate(parcels) if n not in hosted for t in parcel.weights]
        all_states = [t for parcel in parcels for t in parcel.states]
        for column, tensors in ((weights.disk, on_device), (states.disk, all_states)):
            if column is not None and x[column] > LITTLE:
                sizes = [int(graph.tensors.bytes[t]) for t in tensors]
                part = float(x[column]) * (
                    weights.group.bytes if column == weights.disk else weights.group.state_bytes
                )
                chosen.update(tensors[i] for i in rounding.share("disk", sizes, part))
    return chosen


def _hosted_gradients(program: OffloadProgram, choice: Choice) -> set[int]:
    """They go to the host anyway."""
    groups = zip(program.iteration.groups, choice.hosted, strict=True)
    return {t for group, hosted in groups for number in hosted for t in group.parcels[number].gradients}


def _weights_away(
    graph: Graph, stocks: WeightStocks, hosted: frozenset[int], x: Floats, rounding: Rounding
) -> Iterator[Stay]:
    """Those updated on the CPU are taken to be away first: that costs no copy out."""
    share = float(x[stocks.program.share])
    part = min(share, float(x[stocks.on_host])) if stocks.on_host is not None else 0.0
    stored = [min(share, float(x[c])) for c in stocks.stored]
    for on_host in (False, True):
        parcels = [p for n, p in enumerate(stocks.group.parcels) if (n in hosted) == on_host]
        tensors = [t for parcel in parcels for t in parcel.weights]
        whole = part if on_host else share - part
        if not tensors or whole <= 0:
            continue
        sizes = [int(graph.tensors.bytes[t]) for t in tensors]
        scale = sum(sizes) / whole
        below = share - part if on_host else 0.0
        wanted = [min(whole, max(0.0, s - below)) * scale for s in stored]
        left = None
        if stocks.trained and not on_host:
            left = [0.0, *(min(whole, float(x[c])) * scale for c in stocks.left[1:])]
        if on_host:
            wanted[1 : stocks.window] = [float(sum(sizes))] * (stocks.window - 1)
        yield from _stays_of(stocks, tensors, sizes, wanted, left, rounding, "weights")


def _states_away(
    graph: Graph,
    weights: WeightStocks,
    states: StateStocks,
    hosted: frozenset[int],
    x: Floats,
    rounding: Rounding,
) -> Iterator[Stay]:
    parcels = [p for n, p in enumerate(weights.group.parcels) if n not in hosted]
    tensors = [t for parcel in parcels for t in parcel.states]
    sizes = [int(graph.tensors.bytes[t]) for t in tensors]
    whole = float(x[weights.program.share]) - (0.0 if weights.on_host is None else float(x[weights.on_host]))
    if states.size and tensors and whole > 0:
        scale = sum(sizes) / whole
        wanted = [min(whole, float(x[c])) * scale for c in states.stored]
        left = [min(whole, float(x[c])) * scale for c in states.left]
        yield from _stays_of(weights, tensors, sizes, wanted, left, rounding, "states")


def _stays_of(
    stocks: WeightStocks,
    tensors: Sequence[int],
    sizes: Sequence[int],
    stored: list[float],
    left: list[float] | None,
    rounding: Rounding,
    kind: str,
) -> Iterator[Stay]:
    """Gap by gap between the steps that need all of them."""
    total = float(sum(sizes))
    ends = [d for d in range(1, stocks.steps) if stocks.step(d) in stocks.group.uses and kind == "weights"]
    for gap, (start, end) in enumerate(pairwise([0, *ends, stocks.steps])):
        stored[start] = total
        stored[start + 1 : end] = rounding.wish((kind, gap), sizes, stored[start + 1 : end])
    if left is not None:
        left = [
            max(out, total - s) if d else 0.0 for d, (out, s) in enumerate(zip(left, stored, strict=True))
        ]
    for absence in absences(sizes, stored, left):
        out = -1 if absence.out < 0 else stocks.step(absence.out)
        yield Stay(tensors[absence.item], out, stocks.step(absence.gone), stocks.step(absence.back))


def _activation_away(
    graph: Graph,
    program: OffloadProgram,
    activation: Activation,
    tensors: Sequence[int],
    x: Floats,
    rounding: Rounding,
) -> Iterator[Stay]:
    sizes = [int(graph.tensors.bytes[t]) for t in tensors]
    kept = sum(float(x[c]) * v for c, v in activation.kept)
    if not activation.stored or not sizes or kept <= 0:
        return
    total = float(sum(sizes))
    scale = total / kept
    stored = [total, *(min(total, float(x[c]) * scale) for c in activation.stored.values())]
    left = [0.0, *(min(total, float(x[c]) * scale) for c in activation.left.values())]
    stored[1:] = rounding.wish("activations", sizes, stored[1:])
    left = [max(out, total - s) for out, s in zip(left, stored, strict=True)]
    for absence in absences(sizes, stored, left):
        made = activation.made
        yield Stay(tensors[absence.item], made + absence.out, made + absence.gone, made + absence.back)
