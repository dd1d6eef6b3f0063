"""The options of a block (thesis, 4.4): what waits on the device between its forward and its backward part.

1. keep: all that backward reads;
2. recompute: nothing but the block's input; forward is recomputed, operation by operation as backward needs
   it;
3. selective: what takes longer to recompute than to copy out and back; that is then offloaded as far as the
   program wants (in the thesis: always and all of it).

More options (not in the thesis) keep the sets that Rk-Rotor's greedy search finds (blocks/greedy.py),
spread evenly over the bytes kept, or come from integer programs (Rk-Checkmate's, blocks/kinds.py: the
fastest way to run the block that keeps at most so many bytes). Identical blocks share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from math import fsum

from ....graphs.graph import Graph, Phase
from ....planner.schedule.sequence import Run, in_default_mode
from ...milp.result import Settings as MilpSettings
from ...recomputation.blocks.greedy import KeptSets
from ...recomputation.blocks.kinds import BlockOptions
from ...recomputation.blocks.option import Option as Places
from ...recomputation.blocks.option import option_of
from ...recomputation.blocks.placed import PlacedBlock, groups, mean_seconds
from ...stages.scan import scan
from ..o_ilp.iteration import Option

PAPER = 3
"""The thesis' options per block."""


@dataclass(frozen=True)
class Asked:
    """The options to find for a block.

    most: options per block, without those of integer programs. programs: of these, for each kind of block.
    seconds: the most for one of them. settings: of their solver.
    """

    most: int = PAPER
    programs: int = 0
    seconds: float = 5.0
    settings: MilpSettings = field(default_factory=MilpSettings)


def block_options(
    blocks: Sequence[PlacedBlock],
    uncounted: AbstractSet[int],
    copy_seconds: float,
    asked: Asked,
    proceed: Callable[[], bool],
) -> list[tuple[Option, ...]]:
    """Return the options of each block. Stops looking for more when `proceed` says so.

    uncounted: tensors whose bytes are counted elsewhere. copy_seconds: of a byte, out and back.
    """
    found: list[tuple[Option, ...]] = [()] * len(blocks)
    for identical in groups(blocks):
        places = _places([blocks[b] for b in identical], copy_seconds, asked, proceed)
        for b in identical:
            options = (_priced(blocks[b], each, uncounted) for each in places)
            found[b] = tuple(dict.fromkeys(options))
    return found


def _places(
    identical: Sequence[PlacedBlock], copy_seconds: float, asked: Asked, proceed: Callable[[], bool]
) -> list[Places]:
    block, most = identical[0], asked.most
    search = KeptSets(block, mean_seconds(identical))
    expensive = {x for x in search.all if _seconds_to_make(search, x) > copy_seconds * _size(block, x)}
    # Keep, selective, recompute; what can't be recomputed is in all of them.
    kept = [search.all, frozenset(expensive | search.fixed), search.fixed][: max(1, most)]
    if most > PAPER:
        more = dict.fromkeys(search.sets(4 * most, proceed))
        kept += _spread(block, [each for each in more if each not in kept], most - PAPER)
    forward = in_default_mode(range(block.forwards))
    runs = (search.backward(each) for each in kept)
    greedy = [option_of(block, forward, back) for back in runs if back is not None]
    return list(dict.fromkeys([*greedy, *_from_programs(identical, asked, proceed)]))


def _from_programs(
    identical: Sequence[PlacedBlock], asked: Asked, proceed: Callable[[], bool]
) -> list[Places]:
    """Return options from integer programs, for evenly spaced limits on what is kept, between all and the
    least."""
    if not asked.programs:
        return []
    # 1: of the greedy options only the two extremes, as the others are found above.
    kind = BlockOptions(identical, 1, proceed)
    greedy = len(kind.options)
    low, high = kind.saves
    for number in range(1, asked.programs + 1):
        saved = high - (high - low) * number // (asked.programs + 1)
        if proceed() and kind.is_open(kind.peaks[1], saved, asked.settings.gap):
            kind.solve(kind.peaks[1], saved, asked.settings, asked.seconds)
    return kind.options[greedy:]


def _spread(block: PlacedBlock, sets: list[frozenset[int]], count: int) -> list[frozenset[int]]:
    sets.sort(key=lambda kept: sum(_size(block, x) for x in kept))
    stride = max(1, -(-len(sets) // max(1, count)))
    return list(islice(sets, 0, None, stride))


def _seconds_to_make(search: KeptSets, x: int) -> float:
    return fsum(search.seconds[place] for place in search.producers[x])


def _priced(block: PlacedBlock, places: Places, uncounted: AbstractSet[int]) -> Option:
    graph = block.graph
    forward, backward = block.runs(places.first), block.runs(places.backward)
    given = block.given | uncounted
    later = frozenset(block.members[block.forwards :])
    back = scan(graph, backward, block.after, given, later)
    # An input that an earlier block's backward reads too is kept, and counted, by that block.
    waiting = {
        x: bits for x, bits in back.needed.items() if x in block.made or x in block.inputs - block.held
    }
    whole = graph.whole_contributions
    then = {**waiting, **{x: whole[x] for x in block.outputs | block.held}}
    ahead = scan(graph, forward, then, given, frozenset(o for o, _mode in forward))
    return Option(
        forward_seconds=_seconds(graph, forward),
        backward_seconds=_seconds(graph, backward),
        kept_bytes=sum(_size(block, x) for x in waiting),
        forward_peak=ahead.peak,
        backward_peak=back.peak,
        forward=tuple(forward),
        backward=tuple(backward),
        kept=frozenset(waiting),
    )


def _seconds(graph: Graph, runs: Iterable[Run]) -> float:
    """Return the seconds of runs, without updates."""
    phase = graph.operations.phase
    return fsum(graph.seconds(*run) for run in runs if phase[run[0]] != Phase.UPDATE)


def _size(block: PlacedBlock, x: int) -> int:
    return block.graph.tensors.bytes.item(x)
