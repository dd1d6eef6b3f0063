"""A way to run a block, and what it costs: an option o > 0 of Rk-Rotor.

An option is two lists of runs: the forward one, before the next blocks, and the backward one, after them,
with its recomputations. The rest follows: each tensor exists from when it is made to its last use before it
is recomputed, so the forward list leaves out what the backward one recomputes in any case. Costs are replayed
by one backward scan (stages/scan.py), linear in the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graphs.closure import closure
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from ...chains.costs import written
from ...stages.scan import bytes_of, scan
from .placed import PlacedBlock


@dataclass(frozen=True)
class Option:
    """Runs of positions in the block (placed.py) with their execution variants.

    first: the forward part when the block runs for the first time.
    forward: the forward part when it ran before.
    turn: the same for a backward part that follows at once, when the output need not exist.
    """

    first: tuple[Run, ...]
    forward: tuple[Run, ...]
    turn: tuple[Run, ...]
    backward: tuple[Run, ...]


@dataclass(frozen=True)
class OptionCost:
    """The cost of an option, in the terms of chains/costs.py: saved x̄_s^o, in bytes.

    Peaks are those of F_s^o and B_s^o with all that exists then, but without what is given, the block's
    input, and what later blocks made that this one doesn't touch.

    both: how often each position runs in F_s^o and B_s^o; other variants count by their share of the baseline
        variant's time.
    turn: the same if B_s^o follows at once.
    """

    both: NDArray[np.float64]
    turn: NDArray[np.float64]
    saved_bytes: int
    forward_peak: int
    turn_peak: int
    backward_peak: int


def option_of(block: PlacedBlock, forward: Iterable[Run], backward: Iterable[Run]) -> Option:
    """Return the option of these lists of positions, without runs that make nothing needed.

    It does not depend on what the blocks around do.
    """
    graph, position = block.graph, {o: position for position, o in enumerate(block.members)}
    ahead, later = block.runs(list(forward)), block.runs(list(backward))
    once = frozenset(block.members[block.forwards :])
    scanned = scan(graph, later, block.after, block.given, once)
    kept = _kept(block, scanned.needed)
    save = scan(graph, ahead, _with_output(block, kept), block.given).runs
    turn = scan(graph, ahead, kept, block.given).runs
    ran = {o for o, _mode in (*save, *scanned.runs)}
    # What no pass needs must run once all the same.
    early = {block.members[p] for p in block.early}.union(
        o for o in block.members[: block.forwards] if o not in ran
    )
    added = _closed(block, early, {o for o, _mode in save})
    first = _with_early(block, _whole_at_first(block, save, added), added)

    def positions(runs: Sequence[Run]) -> tuple[Run, ...]:
        return tuple((position[o], mode) for o, mode in runs)

    return Option(positions(first), positions(save), positions(turn), positions(scanned.runs))


def option_cost(block: PlacedBlock, option: Option) -> OptionCost:
    graph = block.graph
    first, save, turn, later = (
        block.runs(r) for r in (option.first, option.forward, option.turn, option.backward)
    )
    once = frozenset(block.members[block.forwards :])
    back = scan(graph, later, block.after, block.given | block.inputs, once)
    kept = _kept(block, back.needed)
    # An input that neither this backward nor an earlier block's reads is freed in the forward part,
    # though the chain counts it until backward (x_s): its bytes are subtracted, and may leave less than 0.
    unread = block.inputs - block.held - {x for o, _mode in later for x in graph.input_lists[o]}
    going = bytes_of(graph, unread)
    given = block.given | (block.inputs - unread)
    everything = frozenset(o for o, _mode in first)
    whole = scan(graph, first, _with_output(block, kept), given, everything)
    alone = scan(graph, turn if block.outputs else first, kept, given, everything)
    # What only the first pass runs costs the same in all options, unless backward repeats it.
    behind_too = {o for o, _mode in later}
    twice = [run for run in first if run[0] in behind_too and run not in save]
    return OptionCost(
        both=_times_run(block, save + twice + later),
        turn=_times_run(block, turn + twice + later),
        saved_bytes=bytes_of(graph, kept.keys() | block.outputs) - going,
        forward_peak=whole.peak - going,
        turn_peak=alone.peak - going,
        backward_peak=back.peak - going,
    )


def _times_run(block: PlacedBlock, runs: Iterable[Run]) -> NDArray[np.float64]:
    graph, position = block.graph, {o: position for position, o in enumerate(block.members)}
    times = np.zeros(len(position))
    for operation, mode in runs:
        default = graph.seconds(operation)
        share = graph.seconds(operation, mode) / default if default else 1.0
        times[position[operation]] += share
    return times


def _kept(block: PlacedBlock, needed: Mapping[int, int]) -> dict[int, int]:
    return {x: bits for x, bits in needed.items() if x in block.made}


def _with_output(block: PlacedBlock, kept: Mapping[int, int]) -> dict[int, int]:
    return {**kept, **{x: block.graph.whole_contributions[x] for x in block.outputs}}


def _closed(block: PlacedBlock, early: AbstractSet[int], there: AbstractSet[int]) -> set[int]:
    """Return the early operations, and what makes their inputs, but for those that run anyway."""
    graph, absent = block.graph, set(block.members[: block.forwards]) - there

    def before(operation: int) -> set[int]:
        return absent & {p for x in graph.input_lists[operation] for p in graph.producers[x].tolist()}

    return closure(early - there, before)


def _whole_at_first(block: PlacedBlock, runs: Sequence[Run], early: AbstractSet[int]) -> list[Run]:
    """Return the runs; a first run whose variant leaves out what the first pass needs gets the baseline's.

    The first pass alone needs what other blocks read, which no block recomputes (`given`), and what early
    operations read, which run in no other pass.
    """
    graph, seen = block.graph, set[int]()
    wanted = block.given.union(*(graph.input_lists[o] for o in early))
    result: list[Run] = []
    for o, mode in runs:
        left_out = wanted.intersection(written(graph, o)).difference(written(graph, o, mode))
        # Later passes may use the lighter variant: what it leaves out exists by then.
        result.append((o, DEFAULT_MODE if left_out and o not in seen else mode))
        seen.add(o)
    return result


def _with_early(block: PlacedBlock, runs: Sequence[Run], early: AbstractSet[int]) -> list[Run]:
    """Return the runs and the operations that must run too, each before those that follow in traced order."""
    order = {o: position for position, o in enumerate(block.members)}
    # The next one is last, for `pop`.
    waiting = sorted(early, key=order.__getitem__, reverse=True)
    seen: set[int] = set()
    result: list[Run] = []
    for run in runs:
        if run[0] not in seen:
            while waiting and order[waiting[-1]] < order[run[0]]:
                result.append((waiting.pop(), DEFAULT_MODE))
        seen.add(run[0])
        result.append(run)
    return result + [(o, DEFAULT_MODE) for o in reversed(waiting)]
