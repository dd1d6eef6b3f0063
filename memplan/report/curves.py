"""The bytes of each memory as a table, one row per step, for a spreadsheet or a plot."""

from __future__ import annotations

import csv
from io import StringIO

from ..graphs.arrays import Ints
from ..graphs.cells import cell_text
from ..planner.schedule.schedule import Verb
from ..planner.simulator.curves import byte_curves
from ..planner.simulator.timeline import timeline
from .memory_timeline import passed
from .subject import Subject


def by_memory(subject: Subject) -> dict[str, Ints]:
    """Return the bytes per step of those memories that hold anything. Raises InvalidScheduleError."""
    rows = byte_curves(subject.graph, subject.schedule, budget=subject.budget, machine=subject.machine)
    return {name: rows[memory] for name, memory in subject.ledgers.items() if rows[memory].any()}


def table(subject: Subject) -> str:
    """Return a CSV: step, the seconds when the compute queue reaches it, what it does, bytes while it runs.

    Raises InvalidScheduleError.
    """
    graph, schedule, curves = subject.graph, subject.schedule, by_memory(subject)
    line = timeline(graph, schedule, budget=subject.budget, machine=subject.machine)
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["step", "seconds", "verb", "name", *curves])
    times = passed(line).tolist()
    for step, (verb, target, _where) in enumerate(schedule.rows()):
        named = graph.operations if verb == Verb.COMPUTE else graph.tensors
        sizes = [curve.item(step) for curve in curves.values()]
        rows.writerow([step, f"{times[step]:.9g}", Verb(verb).word, cell_text(named.name[target]), *sizes])
    return text.getvalue()
