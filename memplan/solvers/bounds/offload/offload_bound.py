"""A lower bound on the period of schedules that transfer tensors, recompute, and update weights on the CPU.

Minimises the seconds of an iteration, Σ E_s, within the device's budget and the links' rates at chosen
moments. Holds for schedules whose first runs keep the traced order, or for all, as requested. The disk has
no limit in it, and tensors may be transferred in parts. The program is solved in fractions, with one moment
first, then with twice as many while there is time. Moments are the peaks of the baseline, spread over its
time; for any order they are those of operations that follow each other in every order. The bound is computed
from the rows' prices (milp/safe_bounds.py), so no solver's tolerance is in it.

`weight_offload_bound` is the paper's: nothing is recomputed, tensors are transferred whole, in whole numbers.

    link_windows.py  first, if nothing is recomputed: idle time in closed form, for the traced order
    program.py     begin here: symbols, also the paper's, rows, and why schedules satisfy them
    windows.py     moments, and what may run for the first time between them
    variants.py    the memory in which an operation runs, and what it needs there
    columns.py     the program's columns, and sums over them
    stocks.py      rows (5), (6), (8), (9) and `whole`
    host.py        rows (12) to (16), if not all fits into host memory
    fractions.py   what its answer keeps and transfers, to guide searches

Time: O(moments · edges) rows; under a second for one moment of thousands of operations, some ten for more.
Reference: Beaumont, Eyraud-Dubois, Shilova, Zhao 2022, Inria hal-03580767, section 6; the rest was developed
for memplan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from time import monotonic

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....graphs.outward import product_below
from ....planner.baseline import any_size, baseline_schedule
from ....planner.bounds import time_bound
from ....planner.schedule.schedule import Verb
from ....planner.simulator.simulate import simulate
from ...clock import Clock
from ...milp import highs
from ...milp.result import Settings
from ...milp.safe_bounds import relaxed
from ...milp.scaling import scaled
from ...problem import Bound, OrderName
from ..residency.order import predecessors
from .link_windows import link_bound
from .network import network_bound
from .program import offload_program
from .windows import START

NAME = "offload"

FEWEST = 1
"""Moments of the first program; each further one has twice as many."""

BOTH_ENDS = 400
"""Most operations of a graph whose ends are moments too."""

MOST_COLUMNS = 100_000
"""A program with more is not written."""

GROWTH = 3.0
"""A program with twice the moments takes so many times as long, about."""

PROVEN = 1e-6
"""A bound this near to the goal, relatively, is enough."""


def moves(machine: Machine | None) -> bool:
    """Tell whether the machine has the links that the bound is about."""
    return machine is not None and machine.can_transfer


def offload_bound(
    graph: Graph,
    machine: Machine,
    budget: int,
    time_limit: float | None = None,
    goal: float = inf,
    order: OrderName = "file",
    tell: Callable[[Bound], None] = lambda _bound: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Bound:
    """Compute the bound for a machine with links d2h and h2d; ∞: there is no such schedule.

    budget: bytes on the device.
    goal: seconds of a known schedule, beyond which the bound need not rise.
    order: "file": for schedules whose first runs keep the traced order; "any": for all.
    tell: is called with each higher bound.
    cancelled: whether the time is over.
    """
    clock = Clock(time_limit, cancelled)
    seconds = max(time_bound(graph), network_bound(graph, machine, budget))
    if order == "file":
        seconds = max(seconds, link_bound(graph, machine, budget, clock.goes_on))
    tell(Bound(seconds, NAME, order))
    # Moments must follow each other in all orders considered; in any order only a chain does.
    able = able_operations(graph) if order == "file" else _chain(graph, able_operations(graph))
    most, interrupted = FEWEST, False
    while not (interrupted or cancelled()) and seconds < goal * (1 - PROVEN):
        begun = monotonic()
        program = offload_program(graph, machine, budget, chosen_marks(graph, able, most, order), order)
        answer = relaxed(program.model.program(), clock.limit, cancelled)
        seconds, interrupted = max(seconds, product_below(answer.bound, program.unit)), answer.interrupted
        tell(Bound(seconds, NAME, order))
        # Of the next program, which has twice the moments.
        columns = 2 * program.model.columns
        if most >= len(able) or clock.left < GROWTH * (monotonic() - begun) or columns > MOST_COLUMNS:
            break
        most *= 2
    return Bound(seconds, NAME, order)


def chosen_marks(graph: Graph, able: Sequence[int], most: int, order: OrderName) -> list[int]:
    """Choose moments: the starts of some operations, and their ends too if the graph has few operations.

    In traced order the iteration begins with the first operation, if that is among `able`.
    """
    ends = len(graph.operations) <= BOTH_ENDS
    marks = {2 * o + end for o in chosen_moments(graph, able, most) for end in (0, ends)}
    return sorted(marks if order == "file" and 0 in marks else {START, *marks})


def _chain(graph: Graph, able: Sequence[int]) -> list[int]:
    """Return the longest list of these operations that follow each other in every order."""
    wanted = {*able}
    length: list[int] = []
    last: list[int] = []
    for operation, before in enumerate(predecessors(graph)):
        best = max(before, key=length.__getitem__, default=-1)
        last.append(best)
        # Predecessors come earlier, so their longest chains are known.
        length.append((operation in wanted) + (length[best] if before else 0))
    found: list[int] = []
    at = max(range(len(length)), key=length.__getitem__, default=-1)
    while at >= 0:
        found.append(at)
        at = last[at]
    return [operation for operation in found[::-1] if operation in wanted]


def weight_offload_bound(
    graph: Graph, machine: Machine, budget: int, time_limit: float | None = None
) -> Bound:
    """Solve the paper's program, eqs. 2 to 8, in whole numbers.

    The result is a bound for schedules that recompute nothing.
    """
    trivial = time_bound(graph)
    program = offload_program(graph, machine, budget, range(0, 2 * len(graph.operations), 2), whole=True)
    # HiGHS' tolerances are absolute: bytes and seconds must be of about the same size.
    fit = scaled(program.model.program())
    result = highs.solve(fit.program, Settings(threads=1), time_limit, {}, lambda _progress: None)
    bound = product_below(fit.result(result).bound, program.unit)
    return Bound(max(trivial, bound), "weight-offload", "file")


def able_operations(graph: Graph) -> list[int]:
    """Return the operations that always run on the device."""
    modes = graph.operations.modes
    return [
        o for o in range(len(graph.operations)) if not any(variant.on_host for variant in modes.get(o, ()))
    ]


def chosen_moments(graph: Graph, able: Sequence[int], most: int) -> Sequence[int]:
    """Return the first operation, then that of the highest peak in each of some equal parts of the time."""
    if len(able) <= most:
        return able
    if most == 1:
        return able[:1]
    level = _levels(graph)
    ends: list[float] = np.cumsum(graph.operations.time)[list(able)].tolist()
    parts = (bisect_left(ends, ends[-1] * part / (most - 1)) for part in range(1, most - 1))
    # Without 0: the first operation is a moment of its own.
    edges = sorted({1, *parts, len(able)} - {0})
    return [able[0], *(max(able[a:b], key=level.__getitem__) for a, b in pairwise(edges))]


def _levels(graph: Graph) -> list[int]:
    """Return per operation the bytes of the baseline while it runs."""
    schedule = baseline_schedule(graph)
    curve = simulate(graph, schedule, machine=any_size(graph)).device_curve
    levels: list[int] = curve[schedule.verbs == Verb.COMPUTE].tolist()
    return levels
