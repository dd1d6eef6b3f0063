"""The times of a program's operations held against eager PyTorch's iteration: is the sum right?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from ...devices.device.choice import device_of
from ...devices.measuring.measure import Measurement
from ...graphs.units import duration
from ...model.iteration import Iteration
from ...program.program import Program
from ..compare.eager_operations import EagerOperations
from .rounds import LIMIT_SECONDS, Rounds, busy_line, off_words, uncertainty

CLOSE = 1.3
"""Factor between the sum and eager's time within which nothing more is measured."""

MOST_ROUNDS = 30
"""Number of rounds after which the times stay as they are."""

STABLE = 0.98
"""Share to which a round must lower a time to be worth another."""


class Check(NamedTuple):
    """The sum of the operations' times compared with eager's.

    sum, eager: seconds, of eager's operations or of its whole iteration.
    """

    sum: float
    eager: float

    @property
    def close(self) -> bool:
        return self.eager <= CLOSE * self.sum and self.sum <= CLOSE * self.eager

    @property
    def off(self) -> float:
        """Return the relative difference from the smaller of both."""
        low, high = sorted((self.sum, self.eager))
        return high / low - 1 if low else 0.0


def check_against_eager(
    iteration: Iteration, program: Program, rounds: Rounds, eager: Mapping[str, Any]
) -> Check | None:
    """Compare the sum of the times with eager's; if they are not close, measure both further, in turn.

    eager: the verdict as in a graph's `source`. Its iteration is the first one to compare with, and costs
        nothing: only on a busy machine, or if much of it is Python, there is more to measure.

    Returns None if eager was not measured.
    """
    if "seconds" not in eager:
        return None
    check = Check(rounds.seconds, eager["seconds"])
    if check.close and rounds.settled:
        return check
    operations = EagerOperations(iteration, device_of(program.device))
    operations.add_iteration()
    end = perf_counter() + LIMIT_SECONDS
    for _ in range(MOST_ROUNDS):
        check = Check(rounds.seconds, operations.seconds)
        if (check.close and rounds.settled) or perf_counter() > end:
            break
        # Further runs can only lower a time: they help where it is too long.
        if check.sum > check.eager or not rounds.settled:
            rounds.run(end=end, anew=check.sum > CLOSE * check.eager)
        if check.eager > check.sum:
            operations.add_iteration()
        now = Check(rounds.seconds, operations.seconds)
        # Neither sum has fallen by more than 2 %: more rounds would change little.
        if rounds.settled and min(now.sum / check.sum, now.eager / check.eager) > STABLE:
            break
    return Check(rounds.seconds, operations.seconds)


def doubt_line(measured: Sequence[Measurement], check: Check | None) -> str | None:
    """Return the line that the user must see if the times are not certain; None if they are."""
    if (line := busy_line(uncertainty(measured))) is not None or check is None or check.close:
        return line
    alone, eager = duration(check.sum), duration(check.eager)
    return f"operations take {alone} alone, {eager} in eager PyTorch: times may be {off_words(check.off)}"
