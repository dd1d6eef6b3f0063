"""Simulated annealing over sequences of runs, within a budget.

Minimises  seconds · (1 + STRICTNESS · excess / limit),  excess: bytes of the peak above the limit,
seconds: max(Σ of the runs, Σ of their launches).
A move that lifts the peak above the limit is followed by a few that bring it back below, and
all together are kept or undone (annealing.py has the rule). For recomputation first in Imanishi et al.,
NeurIPS 2023 (FastSA).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....graphs.arrays import Floats, Ints
from ....graphs.compiled import compiled, inner
from ...annealing import acceptance, temperature_at
from .events import Sequence
from .instance import Instance
from .moves import clear_useless, remove_repeat, run_another_variant, shift
from .rematerialize import CROWDED, DONE, rematerialize_across_peak, rematerialize_anywhere
from .sequence import period, spread, undo, variants_of_sequence
from .tree import peak

STRICTNESS = 5.0

_REPAIRS, _GIVE_UP = 4, 0.2
"""Most moves that bring the peak back below the limit; and, before each, the chance to leave it there."""


class Best(NamedTuple):
    """The best sequence so far: least peak above the limit, then least seconds; one number each.

    variants: its runs in order, the first `length` of them, with room for as many as a sequence has slots.
    """

    peak: Ints
    seconds: Floats
    length: Ints
    variants: Ints


@compiled
def anneal(
    instance: Instance, sequence: Sequence, limit: int, moves: int, hot: float, cold: float, best: Best
) -> None:
    """Try `moves` moves while the temperature falls from `hot` to `cold` seconds.

    `sequence` is changed, and `best` if a better one is found. Random numbers: numba's (annealing.py).
    """
    least_peak, least_seconds, variants = best.peak[0], best.seconds[0], best.variants[: best.length[0]]
    energy = energy_of(sequence, limit)
    now, seconds = max(limit, peak(sequence.tree)), period(sequence)
    # Saving copies the sequence, so the best is saved only when the search moves on from it.
    unsaved = now < least_peak or (now == least_peak and seconds < least_seconds * (1 - 1e-12))
    if unsaved:
        least_peak, least_seconds = now, seconds
    for step in range(moves):
        sequence.journal[0, 0] = 0
        sequence.useless[0] = 0
        own, launches = sequence.seconds[0], sequence.seconds[1]
        outcome = _move(instance, sequence, limit)
        if outcome == DONE:
            _repair(instance, sequence, limit)
            after = energy_of(sequence, limit)
            temperature = temperature_at(step / moves, hot, cold)
            if after <= energy or np.random.random() < acceptance(after - energy, temperature):
                energy = after
                now, seconds = max(limit, peak(sequence.tree)), period(sequence)
                if now < least_peak or (now == least_peak and seconds < least_seconds * (1 - 1e-12)):
                    least_peak, least_seconds, unsaved = now, seconds, True
                elif unsaved:
                    variants, unsaved = _variants_before(sequence), False
                continue
        undo(instance, sequence)
        sequence.seconds[0], sequence.seconds[1] = own, launches  # to the last bit
        # No free slot where one was needed: the runs are spread out anew.
        if outcome == CROWDED:
            spread(instance, sequence)
            energy = energy_of(sequence, limit)
    if unsaved:
        variants = variants_of_sequence(sequence)
    best.peak[0], best.seconds[0], best.length[0] = least_peak, least_seconds, len(variants)
    for k in range(len(variants)):  # a slice assigned compiles the text of its error
        best.variants[k] = variants[k]


@compiled
def energy_of(sequence: Sequence, limit: int) -> float:
    """Return the annealing objective in seconds: the period, with a penalty for bytes above the limit."""
    excess = max(0, peak(sequence.tree) - limit)
    return period(sequence) * (1.0 + STRICTNESS * excess / max(1, limit))


@inner
def _move(instance: Instance, sequence: Sequence, limit: int) -> int:
    choice = np.random.random()
    # Above the limit nearly half of the moves work at the peak.
    if choice < (0.45 if peak(sequence.tree) > limit else 0.1):
        return rematerialize_across_peak(instance, sequence, limit)
    if choice < 0.45:
        return rematerialize_anywhere(instance, sequence, limit)
    if choice < 0.8:
        return remove_repeat(instance, sequence)
    if choice < 0.84 and len(instance.variants) > len(instance.operations):
        return run_another_variant(instance, sequence)
    return shift(instance, sequence)


@inner
def _repair(instance: Instance, sequence: Sequence, limit: int) -> None:
    clear_useless(instance, sequence)
    for _ in range(_REPAIRS):
        if peak(sequence.tree) <= limit or np.random.random() < _GIVE_UP:
            return
        if rematerialize_across_peak(instance, sequence, limit) != DONE:
            return
        clear_useless(instance, sequence)


@inner
def _variants_before(sequence: Sequence) -> Ints:
    """Return the runs as they were before what the journal has."""
    variant = sequence.variant.copy()
    journal = sequence.journal
    for row in range(journal[0, 0], 0, -1):
        variant[journal[row, 0]] = -1 if journal[row, 2] else journal[row, 1]
    return variant[variant >= 0]
