"""Passes through a cluster, whatever its operations: their cost to the level above.

A pass is a sequence of runs of a cluster's operations. Runs that make nothing requested are dropped, and
every tensor is deleted as early as possible. What is left is described step by step, as correction terms need
it (thesis, 3.4.4.1): the bytes of the pass's own tensors, which inputs are still to be read, which outputs
are made. Two backward or forward scans, linear in the runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ....planner.schedule.sequence import Run, backward_scan
from ...stages.slots import DeviceVariant
from .piece import Piece

Tensors = frozenset[int]


@dataclass(frozen=True)
class PassMoment:
    """A moment of a pass.

    bytes: its own tensors and workspace.
    needs: inputs that are read then or later.
    there: outputs made until then.
    """

    bytes: int
    needs: Tensors
    there: Tensors


@dataclass(frozen=True)
class Pass:
    """A pass through a cluster.

    time: seconds.
    reads: shared tensors that it needs.
    writes: shared tensors that are requested of it.
    starts: own tensors that must exist when it begins.
    steps: the moments that no other moment dominates.
    """

    runs: tuple[Run, ...]
    time: float
    reads: Tensors
    writes: Tensors
    starts: Tensors
    steps: tuple[PassMoment, ...]

    @property
    def bytes(self) -> int:
        return max((step.bytes for step in self.steps), default=0)


def pass_of(
    piece: Piece, runs: Sequence[Run], wanted: AbstractSet[int], fresh: AbstractSet[int] = frozenset()
) -> Pass:
    """Return the pass that leaves `wanted`.

    fresh: operations that have not run before, each to run once or more.
    """
    kept, dead, need = _needed(piece, runs, wanted, fresh)
    # What is still needed before the first run comes from outside or from an earlier pass.
    reads = frozenset(x for x, bits in need.items() if bits and piece.shared(x))
    starts = frozenset(x for x, bits in need.items() if bits and not piece.shared(x))
    writes = frozenset(x for x in wanted if piece.shared(x))
    time = sum(variant_of(piece, run).time for run in kept)
    steps = _steps(piece, kept, dead=dead, reads=reads, writes=writes, starts=starts)
    return Pass(runs=tuple(kept), time=time, reads=reads, writes=writes, starts=starts, steps=_worst(steps))


def covers(one: Pass, other: Pass) -> bool:
    """Tell whether a pass can replace the other.

    It is no slower, it reads no more, and each moment takes no more than some moment of the other.
    """
    return (
        one.time <= other.time
        and one.reads <= other.reads
        and all(any(_no_worse(mine, theirs) for theirs in other.steps) for mine in one.steps)
    )


def _no_worse(one: PassMoment, other: PassMoment) -> bool:
    return one.bytes <= other.bytes and one.needs <= other.needs and one.there <= other.there


def variant_of(piece: Piece, run: Run) -> DeviceVariant:
    return next(variant for variant in piece.variants[run[0]] if variant.mode == run[1])


def bytes_of(piece: Piece, tensors: Iterable[int]) -> int:
    return sum(piece.sizes[x] for x in tensors)


def made_by(piece: Piece, run: Run) -> list[tuple[int, int]]:
    """Return (tensor, the contribution as a bit) for all that a run makes."""
    return [(x, 1 << piece.producers[x].index(run[0])) for x in variant_of(piece, run).writes]


def _own(piece: Piece, tensor: int) -> int:
    # Without the bit of what is outside: no run of this piece can make that contribution.
    return (1 << len(piece.producers[tensor])) - 1


def _needed(
    piece: Piece, runs: Sequence[Run], wanted: AbstractSet[int], fresh: AbstractSet[int]
) -> tuple[list[Run], list[list[int]], dict[int, int]]:
    """Return the runs to keep, the tensors dead after each, and the contributions needed at the start."""
    # Reversed, so that the first run of each operation overwrites the later ones.
    firsts = {run[0]: at for at, run in reversed(list(enumerate(runs))) if run[0] in fresh}
    may = [run for at, run in enumerate(runs) if firsts.get(run[0]) == at or not piece.once[run[0]]]
    need = defaultdict(int, {x: _own(piece, x) for x in wanted})
    scan = backward_scan(
        may,
        lambda o, mode: made_by(piece, (o, mode)),
        inputs=piece.reads.__getitem__,
        whole=piece.whole,
        need=need,
        always=fresh,
    )
    return [run for run, _dead in scan], [dead for _run, dead in scan], need


def _steps(
    piece: Piece,
    runs: Sequence[Run],
    dead: Sequence[Sequence[int]],
    reads: Tensors,
    writes: Tensors,
    starts: Tensors,
) -> list[PassMoment]:
    # From the last run back, so that the first death wins: a copy made later is the pass's own.
    end = {x: len(runs) for x in reads}
    for at in range(len(runs) - 1, -1, -1):
        end.update((x, at) for x in dead[at] if x in end)
    alive, given, there = set(starts), set(reads), set[int]()
    total = bytes_of(piece, alive)
    steps: list[PassMoment] = []
    for at, run in enumerate(runs):
        variant = variant_of(piece, run)
        for x in variant.writes:
            # Requested outputs count in `there`, for the level above, and not in `total`.
            if x in writes:
                there.add(x)
            elif x not in alive and x not in given:
                alive.add(x)
                total += piece.sizes[x]
        needs = frozenset(x for x in reads if end[x] >= at)
        # Before the deaths: inputs, outputs and workspace exist together while it runs.
        steps.append(PassMoment(total + variant.workspace, needs, frozenset(there)))
        for x in dead[at]:
            given.discard(x)
            if x in alive:
                alive.remove(x)
                total -= piece.sizes[x]
    return steps


def _worst(steps: Iterable[PassMoment]) -> tuple[PassMoment, ...]:
    """Return the steps without those that another covers."""
    kept: list[PassMoment] = []
    # Descending: a step can only be covered by one before it.
    for step in sorted(set(steps), key=lambda s: (-s.bytes, -len(s.needs), -len(s.there))):
        if not any(_no_worse(step, other) for other in kept):
            kept.append(step)
    return tuple(kept)
