"""Moccasin: the fastest schedule that runs no operation more than a few times, by constraint programming.

First runs keep the file's order. Each operation may run `copies` times; once that is settled, or a share of
the time is over, up to `most` times (rounds.py). The program is in model.py. It is exact:
OPTIMAL means that no schedule in the file's order with at most `most` runs of an operation is faster. The
answer's lower bound is the general one, since other orders and more runs may be faster. Exponential in the
worst case; graphs of 100 operations take seconds to a minute, and at 250 it often finds nothing in one.

Reference: B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, Moccasin: Efficient Tensor Rematerialization for
Neural Networks, ICML 2023, arXiv:2304.14463.
"""

from __future__ import annotations

from importlib.util import find_spec

from ....graphs.errors import MissingPackageError
from ...problem import Answer, Options, Problem
from .rounds import answer
from .settings import Settings


def solve(problem: Problem, options: Options) -> Answer:
    """Ctrl-C during the search ends it: the answer is the best so far."""
    if find_spec("ortools") is None:
        raise MissingPackageError(
            "moccasin needs OR-tools, which is not installed: pip install 'memplan[moccasin]'"
        )
    return answer(problem, options, options.settings or Settings())
