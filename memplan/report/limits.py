"""Limits of a schedule: its memory, at which step and by which tensors; and where its time goes."""

from __future__ import annotations

from math import fsum

import numpy as np

from ..graphs.graph import Phase
from ..graphs.units import duration, format_bytes
from ..planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ..planner.bounds import time_bound
from ..planner.schedule.schedule import Verb
from ..planner.simulator.clock import Queue
from ..planner.simulator.timeline import Timeline
from ..planner.variants import runnable
from ..solvers.bounds.lower_bounds import lower_bounds
from ..solvers.incumbent import PROVEN
from ..solvers.problem import Problem
from .memory_timeline import KINDS, by_kind
from .subject import Subject, cause_index, cause_words
from .tensor_outcomes import recomputed_runs

_KINDS, _TENSORS = 3, 3
"""Kinds and tensors that are named at most."""
_LITTLE = 0.005
"""Share of the iteration below which a part of the time is not named."""
_MORE_BYTES, _MORE_SHARE = 2**30, 0.1
"""More memory that is priced: a GiB, or a share of the budget if that is less."""


def memory_limit(subject: Subject, rows: Lifetimes) -> str:
    """Return when the device holds most, and what; empty without steps. rows: lifetimes of its copies."""
    graph = subject.graph
    sums = by_kind(graph, rows)
    total = sums.sum(axis=1)
    if not len(total):
        return ""
    step = int(total.argmax())
    peak, budget = int(total[step]), subject.budget
    of = f" of {format_bytes(budget)}" if budget is not None else ""
    parts = sums[step]
    kinds = [f"{KINDS[k]} {format_bytes(int(parts[k]))}" for k in np.argsort(-parts)[:_KINDS] if parts[k]]
    there = rows.of((rows.tensor != WORKSPACE) & (rows.there(step) > 0))
    # A tensor that is recomputed while a copy is resident is there twice.
    largest = sorted(set(there.tensor.tolist()), key=lambda x: (-int(graph.tensors.bytes[x]), x))[:_TENSORS]
    named = ", ".join(f"{graph.tensors.name[x]} {format_bytes(int(graph.tensors.bytes[x]))}" for x in largest)
    text = f"Most memory: {format_bytes(peak)}{of} {_while(subject, step)}: {', '.join(kinds)}"
    return f"{text}; the largest are {named}." if named else f"{text}."


def _while(subject: Subject, step: int) -> str:
    """Return which operation runs at a step, or ran last before it."""
    graph, schedule = subject.graph, subject.schedule
    computes = np.flatnonzero(schedule.verbs == Verb.COMPUTE)
    before = computes[computes <= step]
    if not len(before):
        return "before the first operation"
    operation = int(schedule.targets[before[-1]])
    name, phase = graph.operations.name[operation], Phase(int(graph.operations.phase[operation])).word
    return f"while {name} ({phase}) runs" if int(before[-1]) == step else f"after {name} ({phase})"


def time_parts(subject: Subject, line: Timeline) -> str:
    """Return the shares of an iteration that compute, recompute and wait, and what more memory can save.

    The time of all operations, each in its fastest mode, stays.
    """
    if not line.period:
        return ""
    on_device = line.queue == Queue.COMPUTE
    seconds = line.end - line.start
    repeated = recomputed_runs(subject.schedule) & on_device
    waiting = {
        cause: fsum(line.idle[on_device & (line.cause == cause)].tolist())
        for cause in sorted({*line.cause[on_device].tolist()})
    }
    recomputed = fsum(seconds[repeated].tolist())
    busy = fsum(seconds[on_device].tolist())
    parts = [("computing", busy - recomputed), ("recomputing", recomputed)]
    # Rounded sums may exceed the period by a little.
    idle, causes = max(0.0, line.period - busy), cause_words(subject.memories)
    most = max(waiting, key=lambda cause: waiting[cause], default=None)
    index = -1 if most is None or not waiting[most] else cause_index(most, subject.memories)
    parts.append((f"waiting, most of it for {causes[index]}" if index >= 0 else "waiting", idle))
    shown = [f"{part / line.period:.1%} {word}" for word, part in parts if part >= _LITTLE * line.period]
    saved = max(0.0, 1 - time_bound(runnable(subject.graph, subject.machine)) / line.period)
    return f"Time of the device: {', '.join(shown)}. More memory can save at most {saved:.1%} of it."


def memory_price(subject: Subject, seconds: float) -> str:
    """Return what a little more memory can save at most, by the lower bound there; empty without a budget.

    The bound at the larger budget holds for each of its schedules: so the saving is proven to be no larger.
    How much the bound falls between both budgets is its price of memory: what the fastest schedules may gain,
    as far as the bound tells. The rest is what this schedule is above the bound at its own budget.

    seconds: the most to spend on each of the two bounds.
    """
    budget, time = subject.budget, subject.report.figures.time
    if budget is None or seconds <= 0.0 or not time:
        return ""
    more = min(_MORE_BYTES, int(_MORE_SHARE * budget))
    there = _bound(subject, budget + more, seconds)
    # Each bound with more memory holds with less, too; and what the search has proven still holds.
    here = max(there, subject.report.lower_bound or 0.0, _bound(subject, budget, seconds))
    # Bounds are rounded down by less than PROVEN: that is no saving.
    saved, price, above = (x if x > PROVEN * time else 0.0 for x in (time - there, here - there, time - here))
    return (
        f"{format_bytes(more)} more memory can save at most {duration(saved)} ({saved / time:.1%}): "
        f"{duration(price)} by which the lower bound falls, and {duration(above)} of gap at this budget."
    )


def _bound(subject: Subject, budget: int, seconds: float) -> float:
    """Return the largest lower bound, in seconds, that holds for every schedule within a budget."""
    problem = Problem(subject.graph, budget, subject.machine)
    found = lower_bounds(problem, subject.schedule, subject.report.figures.time, seconds)
    return max(bound.seconds for bound in found if bound.general)
