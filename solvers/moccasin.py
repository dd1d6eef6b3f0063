"""Moccasin: the fastest schedule that runs no operation more than a few times, by constraint programming.

First runs keep the file's order. Each operation may run `copies` times; once that is settled, or a share of
the time is over, up to `most` times (moccasin_rounds.py). The program is in moccasin_model.py. It is exact:
OPTIMAL means that no schedule in the file's order with at most `most` runs of an operation is faster. The
answer's lower bound is the general one, since other orders and more runs may be faster. Exponential in the
worst case; graphs of 100 operations take seconds to a minute, and at 250 it often finds nothing in one.

Reference: B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, Moccasin: Efficient Tensor Rematerialization for
Neural Networks, ICML 2023, arXiv:2304.14463.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from ..graphs.errors import InputError, MissingPackageError
from .problem import Answer, Options, Problem
from .settings_text import check_workers

NAME = "moccasin"


@dataclass(frozen=True)
class Settings:
    """copies: how often an operation may run in the first round. most: in the last round.

    threads: CP-SAT's workers, 0 for one a core. seed: of its search.
    """

    copies: int = 2
    most: int = 3
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 1:
            raise InputError(f"copies must be 1 or more, not {self.copies}")
        if self.most < self.copies:
            raise InputError(f"most must be at least copies, which is {self.copies}, not {self.most}")
        check_workers(self.threads, 0, "threads")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must be from 0 to {2**31 - 1:,}, not {self.seed}")


def solve(problem: Problem, options: Options) -> Answer:
    """Ctrl-C during the search ends it: the answer is the best so far."""
    if find_spec("ortools") is None:
        raise MissingPackageError(
            "moccasin needs OR-tools, which is not installed: pip install 'memplan[moccasin]'"
        )
    from .moccasin_rounds import answer

    return answer(problem, options, options.settings or Settings())
