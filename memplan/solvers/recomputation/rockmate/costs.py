"""Costs of all options, as Rk-Rotor's dynamic program (chains/table.py) reads them.

An option may also be one of several neighbouring blocks joined: the tensors between them are then kept or
recomputed as any other, while options block by block keep each block's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain as chain_rows

import numpy as np

from ....graphs.graph import Graph
from ....graphs.structure.chain import Chain
from ....planner.schedule.sequence import Run, in_default_mode
from ...chains.costs import ChainCosts, chain_costs
from ...chains.options import OptionCosts, OptionMove
from ...chains.runs import BlockRuns, Pass
from ..blocks.option import Option, OptionCost, option_cost
from ..blocks.placed import PlacedBlock


@dataclass(frozen=True, eq=False)
class Segment:
    """Blocks first … last of the chain, joined into one."""

    first: int
    last: int
    block: PlacedBlock


@dataclass(frozen=True, eq=False)
class BlockOptionCosts:
    """The options of a chain's blocks, and a row for each in `costs`."""

    costs: OptionCosts
    options: Sequence[tuple[Segment, Option]]


def option_costs(
    graph: Graph,
    chain: Chain,
    runs: Sequence[BlockRuns],
    kinds: Iterable[tuple[Sequence[Segment], Iterable[Option]]],
) -> BlockOptionCosts:
    """Return what the options cost wherever they may be taken.

    Of two options if one is never worse, the other is left out.

    kinds: identical segments, with their options, which are replayed for the first of them alone.
    """
    base = chain_costs(graph, chain, runs)
    passing: list[int] = base.gradient_bytes.tolist()
    rows: list[list[_Row]] = [[] for _ in chain.blocks]
    for segments, options in kinds:
        block = segments[0].block
        priced = _useful(block, ((option_cost(block, option), option) for option in options))
        entering = sum(graph.tensors.bytes.item(x) for x in block.entering)
        for segment in segments:
            # Gradients that the block touches are in `backward_peak` already.
            more = passing[segment.last] - entering
            rows[segment.first] += [
                (_figures(segment.block, cost, more), segment, option) for cost, option in priced
            ]
    return _columns(base, rows)


def sequence(
    chain: Chain, runs: Sequence[BlockRuns], costs: BlockOptionCosts, moves: Iterable[OptionMove]
) -> list[Run]:
    """Return all runs of the iteration."""
    ran = [False] * len(runs)
    result: list[Run] = []
    for kind, number, choice in moves:
        if kind == Pass.ADVANCE:
            result += runs[number].advance if ran[number] else runs[number].first_advance
            ran[number] = True
            continue
        segment, option = costs.options[choice]
        inside = range(number, segment.last + 1)
        # One block that hasn't run makes it the first pass of the whole segment.
        forward = option.forward if all(ran[b] for b in inside) else option.first
        result += segment.block.runs(option.backward if kind == Pass.BACKWARD else forward)
        for b in inside:
            ran[b] = True
    return result + in_default_mode(chain.after)


def _figures(block: PlacedBlock, cost: OptionCost, passing: int = 0) -> tuple[float, ...]:
    """Return the figures of an option in one block.

    passing: bytes that exist during the backward part and that the block doesn't touch.
    """
    return (
        float(cost.both @ block.seconds),
        float(cost.turn @ block.seconds),
        cost.saved_bytes,
        cost.forward_peak,
        cost.turn_peak,
        cost.backward_peak + passing,
    )


def _useful(
    block: PlacedBlock, priced: Iterable[tuple[OptionCost, Option]]
) -> list[tuple[OptionCost, Option]]:
    # By seconds: only an option that comes before can be as good in all; of equal ones the first stays.
    rows = sorted(((_figures(block, pair[0]), *pair) for pair in priced), key=lambda row: row[0])
    kept: list[tuple[tuple[float, ...], OptionCost, Option]] = []
    for figures, cost, option in rows:
        if not any(all(a <= b for a, b in zip(other, figures, strict=True)) for other, _c, _o in kept):
            kept.append((figures, cost, option))
    return [(cost, option) for _figures, cost, option in kept]


_Row = tuple[tuple[float, ...], Segment, Option]


def _columns(base: ChainCosts, rows: Sequence[Sequence[_Row]]) -> BlockOptionCosts:
    flat = list(chain_rows.from_iterable(rows))
    # Bytes pass through float64 unharmed: it is exact up to 2⁵³.
    both, turn, *sizes = np.array([figures for figures, _segment, _option in flat], np.float64).T
    columns = OptionCosts(
        base,
        np.cumsum([0, *map(len, rows)]),
        np.array([segment.last for _figures, segment, _option in flat], np.int64),
        both,
        turn,
        *(column.astype(np.int64) for column in sizes),
    )
    return BlockOptionCosts(columns, [(segment, option) for _figures, segment, option in flat])
