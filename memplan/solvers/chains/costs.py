"""Costs of each block of a chain, measured on its operations, in the terms of Rotor's dynamic program.

| paper (thesis 2.1.2)    | here              | meaning                                                      |
|-------------------------|-------------------|--------------------------------------------------------------|
| u_f^s                   | advance_seconds   | F_∅, F_ck: forward that makes the output alone               |
|                         | save_seconds      | F_all: forward that makes all that backward reads, and x_s   |
| u_b^s                   | backward_seconds  |                                                              |
| x_{s-1}                 | input_bytes       | the block's input; 0 for the first, its batch is there       |
| x̄_s                     | saved_bytes       | what F_all adds until the backward, the output x_s included  |
| g_t                     | gradient_bytes    | there when B_t starts, for it and blocks before it           |
| x_s + o_f^s             | advance_peak      | of F_ck, its input not counted                               |
| x_{s-1} + x_s + o_f^s   | through_peak      | of F_∅, its input counted until its last use                 |
| x̄_s + o_f^s             | save_peak         | of F_all, its input not counted                              |
|                         | turn_seconds/peak | the same if B_s follows at once: x_s need not be made        |
| g_s + x̄_s + o_b^s       | backward_peak     | of B_s, its input not counted                                |

    m_∅^{s,t}   = g_t + max(peak of F_ck^s, max over s < j < t of the peak of F_∅^j)
    m_all^{s,t} = max(g_t + peak of F_all^s, peak of B_s)      with turn_peak if s = t

The overheads o are not formed: the peaks are replayed on the block's operations, each tensor freed after its
last use. g_t holds more than one gradient: parameter gradients, and sums still under way, stay from the block
that makes them to the end (or to the update); shared tensors to the last block that reads them. All this does
not depend on the split, so it is added to every peak as the paper adds |g_t|. An input that no backward reads
is freed while F_all runs, so x̄_s and the peaks from then on are less by it. Batch and persistent tensors
count all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from math import fsum

import numpy as np
from numpy.typing import NDArray

from ...graphs.graph import Graph
from ...graphs.structure.chain import Chain
from ...planner.schedule.schedule import DEFAULT_MODE
from ...planner.schedule.sequence import Run
from .runs import BlockRuns, last_reader

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ChainCosts:
    """Costs of a chain's blocks, one entry per block, as in the table above.

    resident_bytes: of batch and persistent tensors.
    fixed_seconds: what runs once whatever the moves.
    """

    advance_seconds: Seconds
    save_seconds: Seconds
    turn_seconds: Seconds
    backward_seconds: Seconds
    input_bytes: Bytes
    saved_bytes: Bytes
    gradient_bytes: Bytes
    advance_peak: Bytes
    through_peak: Bytes
    save_peak: Bytes
    turn_peak: Bytes
    backward_peak: Bytes
    resident_bytes: int
    fixed_seconds: float

    def __len__(self) -> int:
        return len(self.saved_bytes)


def chain_costs(graph: Graph, chain: Chain, runs: Sequence[BlockRuns]) -> ChainCosts:
    sizes: list[int] = graph.tensors.bytes.tolist()
    made, last = first_producers(graph, chain), last_reader(graph, chain)
    gradient = _crossing_bytes(sizes, made, last | _last_shared_use(graph, chain, last), len(runs))
    resident: list[int] = graph.resident.nonzero()[0].tolist()
    everywhere = chain.shared.union(resident)
    seconds = [
        [
            fsum(graph.seconds(*run) for run in part)
            for part in (r.advance, r.save, r.turn, r.backward, r.first_save)
        ]
        for r in runs
    ]
    bytes_: list[tuple[int, ...]] = []
    inputs = frozenset[int]()
    for number, run in enumerate(runs):
        output = chain.blocks[number].output
        outputs = frozenset[int]() if output is None else frozenset([output])
        touched = {x for o, _mode in run.backward for x in (*graph.input_lists[o], *written(graph, o))}
        # Saved, and read by the backward of this block or of one below: there when B starts.
        waiting = {x for x in run.saved if last.get(x, number + 1) <= number}
        earlier = {x for x in touched if x in waiting or made.get(x, number) > number}
        lower = {x for x in touched if last.get(x, number) < number}
        entering = sum(sizes[x] for x in inputs)
        start = gradient[number] + sum(sizes[x] for x in waiting)
        every = (*run.first_save, *run.backward)
        met = {x for o, _mode in every for x in (*graph.input_lists[o], *written(graph, o))}
        there = everywhere & met
        given = there | inputs
        # An input that no backward reads is freed while F_all runs.
        unread = inputs.difference(last)
        going = sum(sizes[x] for x in unread)
        # The last block has no output: it runs once, with its backward right after.
        turn = run.first_save if output is None else run.turn
        bytes_.append(
            (
                entering,
                sum(sizes[x] for x in run.saved) - going,
                run_peak(graph, run.first_advance, given, kept=outputs),
                # F_∅: its input counts until its last use.
                run_peak(graph, run.first_advance, there, inputs, kept=outputs, start=entering),
                run_peak(graph, run.first_save, given - unread, unread, kept=run.saved, start=going) - going,
                run_peak(graph, turn, given - unread, unread, kept=waiting, start=going) - going,
                run_peak(graph, run.backward, given, earlier, kept=lower, start=start) - going,
            )
        )
        inputs = outputs
    advance, save, turn, backward, first = np.array(seconds).T
    x, saved, advance_peak, through_peak, save_peak, turn_peak, backward_peak = np.array(bytes_, np.int64).T
    return ChainCosts(
        advance_seconds=advance,
        save_seconds=save,
        turn_seconds=turn,
        backward_seconds=backward,
        input_bytes=x,
        saved_bytes=saved,
        gradient_bytes=np.array(gradient, np.int64),
        advance_peak=advance_peak,
        through_peak=through_peak,
        save_peak=save_peak,
        turn_peak=turn_peak,
        backward_peak=backward_peak,
        resident_bytes=graph.resident_bytes,
        # First passes run more than SAVE does, once: the same in every answer.
        fixed_seconds=fsum(first - save) + float(graph.operations.time[list(chain.after)].sum()),
    )


def advance_needs(costs: ChainCosts, t: int) -> Bytes:
    """Return m_∅^{s,t} for s = 0 … t, in bytes without what is resident."""
    through = np.zeros(t + 1, np.int64)
    if t > 1:
        # Running maxima from the back: through[s] is over s < j < t.
        through[: t - 1] = np.maximum.accumulate(costs.through_peak[t - 1 : 0 : -1])[::-1]
    return costs.gradient_bytes[t] + np.maximum(costs.advance_peak[: t + 1], through)


def run_peak(
    graph: Graph,
    runs: Sequence[Run],
    given: AbstractSet[int],
    there: AbstractSet[int] = frozenset(),
    *,
    kept: AbstractSet[int],
    start: int = 0,
) -> int:
    """Return the most bytes while `runs` go on, each tensor not in `kept` freed after its last use.

    given: tensors that do not count.
    there: tensors that are resident at first.
    start: bytes then.
    """
    last: dict[int, int] = {}
    for position, (operation, mode) in enumerate(runs):
        for x in (*graph.input_lists[operation], *written(graph, operation, mode)):
            last[x] = position
    sizes = graph.tensors.bytes
    present, now, peak = set(there), start, start
    for position, (operation, mode) in enumerate(runs):
        made = written(graph, operation, mode)
        new = [x for x in made if x not in given and x not in present]
        present.update(new)
        now += sum(sizes.item(x) for x in new)
        peak = max(peak, now + graph.workspace(operation, mode))
        for x in {*graph.input_lists[operation], *made}:
            if last[x] == position and x in present and x not in kept:
                present.remove(x)
                now -= sizes.item(x)
    return peak


def written(graph: Graph, operation: int, mode: int = DEFAULT_MODE) -> list[int]:
    """Return the tensors that a run makes or contributes to."""
    return [x for x, _bit in graph.contributions(operation, mode)]


def first_producers(graph: Graph, chain: Chain) -> dict[int, int]:
    """Return, for each tensor that is made, the block in which it first exists in the backward sweep.

    Shared tensors exist before.
    """
    made = dict.fromkeys(chain.shared, len(chain.blocks))
    for number in reversed(range(len(chain.blocks))):
        block = chain.blocks[number]
        for operation in (*block.forward, *block.backward):
            for x in written(graph, operation):
                # From the last block down: the first that is met is the first in the backward sweep.
                made.setdefault(x, number)
    return made


def _last_shared_use(graph: Graph, chain: Chain, last: dict[int, int]) -> dict[int, int]:
    """Return shared tensor -> the block with whose backward its last use is over, forward passes included."""
    # Without a backward reader: over before any backward, unless a forward pass reads it.
    use = {x: last.get(x, len(chain.blocks)) for x in chain.shared}
    for number in reversed(range(len(chain.blocks))):
        for operation in chain.blocks[number].forward:
            for x in graph.input_lists[operation]:
                if x in use:
                    use[x] = min(use[x], number)
    return use


def _crossing_bytes(
    sizes: Sequence[int], made: dict[int, int], last: dict[int, int], blocks: int
) -> list[int]:
    """Return per block the bytes that exist when its backward starts and that later blocks have made."""
    change = [0] * (blocks + 1)
    for x, block in made.items():
        lowest = last.get(x, block)
        if lowest < block:
            # It exists when the backward of blocks lowest … block - 1 starts.
            # −1 is a use after all blocks: there for block 0's backward too.
            change[max(lowest, 0)] += sizes[x]
            change[block] -= sizes[x]
    return list(accumulate(change))[:blocks]
