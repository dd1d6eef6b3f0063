"""What all options cost, as Rk-Rotor's dynamic program reads it.

An option may also be one of several neighbouring blocks joined: the tensors between them are then kept or
made again as any other, where options block by block keep each block's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graphs.graph import Graph
from ..graphs.structure import Chain
from ..planner.sequence import Run, in_plain_mode
from .chain_costs import Bytes, ChainCosts, chain_costs
from .chain_runs import BlockRuns, Pass
from .rk_rotor_blocks import PlacedBlock
from .rk_rotor_option import Option, OptionCost, option_cost

OptionMove = tuple[Pass, int, int]
"""How a block is run, its number, and with which of the options that begin there (SAVE and BACKWARD)."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Blocks first … last of the chain, joined into one."""

    first: int
    last: int
    block: PlacedBlock


@dataclass(frozen=True, eq=False)
class StartCosts:
    """The options that begin at one block; an entry each, with columns of OptionCost.

    last: where the option ends. both, turn: seconds forward and backward.
    """

    options: Sequence[tuple[Segment, Option]]
    last: NDArray[np.int64]
    both: NDArray[np.float64]
    turn: NDArray[np.float64]
    saved: Bytes
    forward_peak: Bytes
    turn_peak: Bytes
    backward_peak: Bytes


@dataclass(frozen=True, eq=False)
class OptionCosts:
    """chain: costs of o = 0. starts: those of o > 0, by the block where they begin."""

    chain: ChainCosts
    starts: Sequence[StartCosts]


def option_costs(
    graph: Graph,
    chain: Chain,
    runs: Sequence[BlockRuns],
    options: Iterable[tuple[Segment, Iterable[Option]]],
) -> OptionCosts:
    """Of two options of a segment, where one is never worse, the other is left out."""
    base = chain_costs(graph, chain, runs)
    rows: list[list[tuple[Segment, OptionCost, Option]]] = [[] for _ in chain.blocks]
    for segment, its in options:
        passing = int(base.gradient_bytes[segment.last])
        priced = ((option_cost(segment.block, option, passing), option) for option in its)
        rows[segment.first] += [(segment, cost, option) for cost, option in _useful(priced)]
    return OptionCosts(base, [_columns(row) for row in rows])


def sequence(
    chain: Chain, runs: Sequence[BlockRuns], costs: OptionCosts, moves: Iterable[OptionMove]
) -> list[Run]:
    """All runs of the iteration."""
    ran = [False] * len(runs)
    result: list[Run] = []
    for kind, number, choice in moves:
        if kind == Pass.ADVANCE:
            result += runs[number].advance if ran[number] else runs[number].first_advance
            ran[number] = True
            continue
        segment, option = costs.starts[number].options[choice]
        inside = range(number, segment.last + 1)
        forward = option.forward if all(ran[b] for b in inside) else option.first
        result += segment.block.runs(option.backward if kind == Pass.BACKWARD else forward)
        for b in inside:
            ran[b] = True
    return result + in_plain_mode(chain.after)


def _figures(cost: OptionCost) -> tuple[float, ...]:
    return (
        cost.forward_seconds + cost.backward_seconds,
        cost.turn_seconds + cost.backward_seconds,
        cost.saved_bytes,
        cost.forward_peak,
        cost.turn_peak,
        cost.backward_peak,
    )


def _useful(priced: Iterable[tuple[OptionCost, Option]]) -> list[tuple[OptionCost, Option]]:
    kept: list[tuple[tuple[float, ...], OptionCost, Option]] = []
    for cost, option in sorted(priced, key=lambda pair: _figures(pair[0])):
        figures = _figures(cost)
        if not any(all(a <= b for a, b in zip(other, figures, strict=True)) for other, _c, _o in kept):
            kept.append((figures, cost, option))
    return [(cost, option) for _figures, cost, option in kept]


def _columns(row: Sequence[tuple[Segment, OptionCost, Option]]) -> StartCosts:
    both, turn, *sizes = np.array([_figures(cost) for _s, cost, _o in row], np.float64).T
    return StartCosts(
        [(segment, option) for segment, _cost, option in row],
        np.array([segment.last for segment, _cost, _option in row], np.int64),
        both,
        turn,
        *(column.astype(np.int64) for column in sizes),
    )
