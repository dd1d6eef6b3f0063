"""Options of a cluster: the ways to run it, in Hiremate's terms the options of a cNode (thesis, 3.4.1.1).

    F_j without saving   (ADVANCE)   makes the outputs alone, from the inputs
    F_j^o                (SAVE)      makes the outputs and what option o's backward needs, its phantom
    F_j^o, outputs there (TURN)      makes the phantom alone, right before B_j^o; the paper has no such run
    B_j^o                (BACKWARD)  reads the phantom, gradients, and inputs or outputs as the option says

SAVE and TURN are the same sequence, without what is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from .passes import Pass, bytes_of, covers, pass_of
from .piece import Piece


@dataclass(frozen=True)
class Option:
    """One option of a cluster. first: the forward pass, nothing having run. saved: the phantom's bytes."""

    first: Pass
    recompute: Pass
    turn: Pass
    backward: Pass
    saved: int

    @property
    def time(self) -> float:
        return self.first.time + self.backward.time

    @property
    def peak(self) -> int:
        return max(self.first.bytes, self.backward.bytes)


@dataclass(frozen=True)
class Advance:
    """The forward pass that saves nothing, the first time and later."""

    first: Pass
    recompute: Pass


def option_of(piece: Piece, forward: Sequence[Run], backward: Sequence[Run]) -> Option:
    """Make an option from a sequence that runs the whole cluster, before the loss and after it."""
    outputs = forward_outputs(piece)
    fresh = range(piece.forward, piece.operations)
    back = pass_of(piece, backward, lasting(piece), frozenset(fresh))
    # Shared tensors that backward reads: forward must have made this piece's part of them.
    used = {x for x in back.reads if _forward_makes(piece, x)}
    every = frozenset(range(piece.forward))
    return Option(
        pass_of(piece, forward, outputs | used | back.starts, every),
        pass_of(piece, forward, outputs | used | back.starts),
        pass_of(piece, forward, used | back.starts),
        back,
        bytes_of(piece, back.starts),
    )


def advance_of(piece: Piece) -> Advance:
    """Run each operation once, in the lightest variant that makes what is needed; results the first time."""
    outputs = forward_outputs(piece)
    results = {x for x, result in enumerate(piece.result) if result and _forward_makes(piece, x)}
    # A result made in the first pass stays; later passes needn't make it.
    need = outputs | results
    runs: list[Run] = []
    for operation in range(piece.forward - 1, -1, -1):
        default = piece.variants[operation][0]
        wanted = need.intersection(default.writes)
        if not wanted and not piece.early[operation]:
            continue
        runs.append((operation, _lightest(piece, operation, wanted)))
        need.update(piece.reads[operation])
    runs.reverse()
    early = frozenset(o for o in range(piece.forward) if piece.early[o])
    return Advance(pass_of(piece, runs, outputs | results, early), pass_of(piece, runs, outputs))


def forward_outputs(piece: Piece) -> set[int]:
    """Return the tensors that the forward part makes and others read."""
    return {x for x, output in enumerate(piece.output) if output and _forward_makes(piece, x)}


def _forward_makes(piece: Piece, tensor: int) -> bool:
    """Tell whether forward makes all of the tensor or a part of it.

    A sum to which other clusters add may be read by this one's backward alone.
    """
    return any(o < piece.forward for o in piece.producers[tensor])


def lasting(piece: Piece) -> set[int]:
    """Return the tensors that the backward part must leave: outputs and results."""
    return {
        x
        for x, producers in enumerate(piece.producers)
        if (piece.shared(x) or piece.result[x]) and any(o >= piece.forward for o in producers)
    }


def default_option(piece: Piece) -> Option:
    """Return the baseline option: every operation once, in order; all that backward reads is saved."""
    forward = [(operation, DEFAULT_MODE) for operation in range(piece.forward)]
    backward = [(operation, DEFAULT_MODE) for operation in range(piece.forward, piece.operations)]
    return option_of(piece, forward, backward)


def select(options: Sequence[Option], count: int) -> list[Option]:
    """Select at most `count` options with peaks far apart (thesis, 3.4.5).

    They are the highest, the lowest, then the one closest to the middle of the widest interval left that has
    one, and so on.
    """
    rows = sorted(_useful(options), key=lambda option: (-option.peak, -option.saved, option.time))
    if len(rows) <= count:
        return rows
    chosen = [0, len(rows) - 1][:count]
    while len(chosen) < count:
        chosen.sort()
        # Never empty: fewer are chosen than there are rows, so some neighbours leave rows between them.
        apart = [
            (rows[high].peak - rows[low].peak, high, low) for high, low in pairwise(chosen) if low > high + 1
        ]
        _width, high, low = max(apart, key=lambda interval: interval[0])
        # Rows go from the highest peak down, so `high` has the smaller index.
        middle = (rows[high].peak + rows[low].peak) / 2
        chosen.append(min(range(high + 1, low), key=lambda row: abs(rows[row].peak - middle)))
    return [rows[index] for index in sorted(chosen)]


def _useful(options: Sequence[Option]) -> list[Option]:
    """Return the options without those for which another is at least as good by its figures."""

    def figures(option: Option) -> tuple[float, ...]:
        return option.time, option.first.bytes, option.backward.bytes, option.saved

    kept: list[Option] = []
    for option in sorted(options, key=figures):
        if not any(
            all(mine <= theirs for mine, theirs in zip(figures(other), figures(option), strict=True))
            # What backward reads must stay outside, which is in no figure.
            and other.backward.reads <= option.backward.reads
            for other in kept
        ):
            kept.append(option)
    return kept


def undominated(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other can replace anywhere: none is as fast and needs no more."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.time, option.saved, option.peak)):
        if not any(_replaces(other, option) for other in kept):
            kept.append(option)
    return kept


def _replaces(one: Option, other: Option) -> bool:
    return one.saved <= other.saved and all(
        covers(mine, theirs)
        for mine, theirs in (
            (one.first, other.first),
            (one.recompute, other.recompute),
            (one.turn, other.turn),
            (one.backward, other.backward),
        )
    )


def _lightest(piece: Piece, operation: int, wanted: set[int]) -> int:
    default = piece.variants[operation][0]
    # A slower variant would slow down every answer that takes this pass, whatever the budget.
    fit = [w for w in piece.variants[operation] if wanted <= set(w.writes) and w.time <= default.time]
    return min(fit, key=lambda w: w.workspace + bytes_of(piece, w.writes)).mode
