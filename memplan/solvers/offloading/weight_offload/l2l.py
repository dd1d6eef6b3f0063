"""L2L: every weight is kept on the host, and is on the device only while its layer runs.

Nothing is minimised: a baseline, if the schedule that keeps everything does not fit. Assumed as in
offload_greedy.py, where the room's files are listed; this one needs starts.py (`lazy_order`) alone. A weight
is fetched right before its forward and once more before its backward, and written back as soon as it is
updated; nothing is fetched ahead. In a chain the period is Σ u + 2 Σ |w| / β (symbols: cycles/cycle.py) less
the two copies that neighbouring uses save (the last layer's second fetch, the first layer's). Linear.

Reference: B. Pudipeddi et al., Training large neural networks with constant memory using a new execution
algorithm, 2020, arXiv:2002.05645; as read in Beaumont et al. 2022, hal-03580767, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...problem import Options, Problem, SolverResult
from ..cycles.steps import schedule_of_order
from .result import solved
from .starts import lazy_order


@dataclass(frozen=True)
class Settings:
    """None."""


def solve(problem: Problem, options: Options) -> SolverResult:
    return solved(
        "l2l",
        problem,
        options,
        lambda cycle: [schedule_of_order(cycle, lazy_order(cycle, range(len(cycle.intervals))))],
    )
