"""Moccasin: the fastest schedule that runs no operation more than a few times, by constraint programming.

Minimises the seconds of all runs within the device's bytes. Assumes that first runs keep the file's order,
and that each operation runs at most `copies` times; once that is settled, or a share of the time is over, up
to `most` times. It is exact: OPTIMAL means that no schedule in the file's order with at most `most` runs of
an operation is faster. The answer's lower bound is the general one, since other orders and more runs may be
faster. Exponential in the worst case; graphs of 100 operations take seconds to a minute, and at 250 it often
finds nothing in one. The paper's symbols, beside ours, stand in model.py.

In the order to read:

    window.py                   what is to be decided: stages, what may run again, events
    model.py, copies.py         the constraint program; the intervals of one tensor
    start.py, times.py          a sequence as values of the variables; seconds as whole numbers
    search.py                   CP-SAT at work
    question.py                 what it is asked and tells
    process.py, child.py        it runs in a process of its own: both sides
    rounds.py, settings.py      more copies in each round; the options
    stretch.py                  part of a sequence as a window

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
