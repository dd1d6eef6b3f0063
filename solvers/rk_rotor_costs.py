"""What all options of all blocks cost, as Rk-Rotor's dynamic program reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
"""How a block is run, its number, and with which of its options (SAVE and BACKWARD)."""


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """One entry an option: columns of OptionCost. both, turn: seconds forward and backward."""

    both: NDArray[np.float64]
    turn: NDArray[np.float64]
    saved: Bytes
    forward_peak: Bytes
    turn_peak: Bytes
    backward_peak: Bytes


@dataclass(frozen=True, eq=False)
class OptionCosts:
    """chain: costs of o = 0. options, costs: those of o > 0, block by block."""

    chain: ChainCosts
    options: Sequence[Sequence[Option]]
    costs: Sequence[BlockCosts]


def option_costs(
    graph: Graph,
    chain: Chain,
    runs: Sequence[BlockRuns],
    blocks: Sequence[PlacedBlock],
    options: Mapping[int, Iterable[Option]],
) -> OptionCosts:
    """options: by block. Of two options where one is never worse, the other is left out."""
    base = chain_costs(graph, chain, runs)
    chosen: list[list[Option]] = []
    costs: list[BlockCosts] = []
    for number, block in enumerate(blocks):
        passing = int(base.gradient_bytes[number])
        priced = [(option_cost(block, option, passing), option) for option in options[number]]
        useful = _useful(priced)
        chosen.append([option for _cost, option in useful])
        costs.append(_columns([cost for cost, _option in useful]))
    return OptionCosts(base, chosen, costs)


def sequence(
    chain: Chain,
    blocks: Sequence[PlacedBlock],
    runs: Sequence[BlockRuns],
    options: Sequence[Sequence[Option]],
    moves: Iterable[OptionMove],
) -> list[Run]:
    """All runs of the iteration."""
    ran = [False] * len(blocks)
    result: list[Run] = []
    for kind, number, choice in moves:
        if kind == Pass.ADVANCE:
            result += runs[number].advance if ran[number] else runs[number].first_advance
        else:
            option = options[number][choice]
            forward = option.forward if ran[number] else option.first
            result += blocks[number].runs(option.backward if kind == Pass.BACKWARD else forward)
        ran[number] = True
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


def _columns(costs: Sequence[OptionCost]) -> BlockCosts:
    both, turn, *sizes = np.array([_figures(cost) for cost in costs], np.float64).T
    return BlockCosts(both, turn, *(column.astype(np.int64) for column in sizes))
