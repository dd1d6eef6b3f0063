"""Simulated annealing, as the searches share it: the temperature, Metropolis' rule, and the pace of compiled
moves.

S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, Optimization by simulated annealing, Science 220, 1983. Energies
are seconds of an iteration, and so are temperatures. What a move is, how it is undone and what is kept as the
best belong to the searches: search and offload-greedy anneal in compiled code, joint in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp
from time import monotonic

import numpy as np

from ..graphs.compiled import compiled, inner


@compiled
def seed(number: int) -> None:
    """Seed the random numbers of compiled code; those of Python and NumPy are others."""
    np.random.seed(number)


@inner
def temperature_at(done: float, hot: float, cold: float) -> float:
    """Return the temperature when this share of an annealing is done: it falls geometrically."""
    return hot * (cold / hot) ** done


@inner
def acceptance(worse: float, temperature: float) -> float:
    """Return the probability with which Metropolis' rule accepts a move that is worse by so many seconds."""
    return exp(-worse / max(temperature, 1e-300))


@dataclass
class Cooling:
    """One annealing by compiled code, which runs for a part of a second at a time.

    It ends after its moves, or when its time is over; the temperature falls with whichever is further on.

    hot, cold: seconds, at first and at last. until: the end of its time, as `monotonic` counts.
    chunk: moves that run at once at first; later as many as take `chunk_seconds`, or always if that is None.
    cut_short: time ended it before its moves did.
    """

    moves: int
    hot: float
    cold: float
    until: float
    chunk: int
    chunk_seconds: float | None
    cut_short: bool = field(default=False, init=False)

    def chunks(self) -> Iterator[tuple[int, float, float]]:
        """Yield (moves to make, the temperature at their start, at their end) until the annealing is over."""
        begin, progress, made = monotonic(), 0.0, 0
        chunk = min(self.chunk, self.moves)
        while progress < 1.0:
            following = max(progress, (made + chunk) / self.moves) if self.moves else 1.0
            chunk_begin = monotonic()
            before, after = (temperature_at(done, self.hot, self.cold) for done in (progress, following))
            yield chunk, before, after
            now = monotonic()
            made += chunk
            by_time = (now - begin) / max(self.until - begin, 1e-9)
            self.cut_short |= by_time > following
            progress = max(following, by_time)
            if self.chunk_seconds is not None:
                pace = chunk / max(now - chunk_begin, 1e-9)
                # No more than four times as many: the first chunks are too short for their pace to be known.
                chunk = min(int(pace * self.chunk_seconds), 4 * chunk)
            chunk = max(1, min(chunk, self.moves - made))
