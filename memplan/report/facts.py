"""The data of the page that shows a schedule, as one document: figures, curves, queues, lifetimes, modules.

graph, schedule ──timeline──▶ when ──┐
                ──lifetimes─▶ where ─┴─▶ moments, bars, fates, modules ──▶ the page
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graphs.arrays import Floats, Ints
from ..graphs.graph import Graph, Phase
from ..graphs.machine import Memory
from ..planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ..planner.baseline import any_size, baseline, baseline_schedule
from ..planner.schedule.schedule import Schedule, Verb
from ..planner.simulator.curves import byte_curves
from ..planner.simulator.timeline import NOTHING, Timeline, timeline
from .colours import COLOURS
from .curves import by_memory
from .limits import memory_limit, memory_price, time_parts
from .memory_timeline import KINDS, moments, passed
from .modules import modules
from .subject import Subject, cause_index, cause_words, queue_index, queue_words
from .tensor_outcomes import TensorOutcome, bars, fates, recomputed_runs

Document = dict[str, Any]


def facts(subject: Subject, bound_seconds: float = 0.0) -> Document:
    """Return the page's data.

    bound_seconds: the most to spend on each of two lower bounds, for the price of memory; 0 leaves it out.

    Times are seconds since the device ended computing the iteration before, sizes bytes.
    """
    graph, schedule = subject.graph, subject.schedule
    line = timeline(graph, schedule, budget=subject.budget, machine=subject.machine)
    rows, memories = subject.copies(), subject.memories
    return {
        "figures": {
            **subject.report.predicted(),
            "disk_peak": subject.report.figures.disk_peak,
            "deeper_peaks": subject.report.figures.deeper_peaks,
            "budget": subject.budget,
            "arena": subject.arena,
        },
        "overhead": subject.report.overhead,
        "gap": subject.report.gap,
        "bound_by": subject.report.bound_by,
        "above": subject.report.above,
        "limits": [
            memory_limit(subject, rows[Memory.DEVICE]),
            time_parts(subject, line),
            memory_price(subject, bound_seconds),
        ],
        "period": _short(line.period),
        "kinds": KINDS,
        "colours": COLOURS,
        "fates": [fate.word for fate in TensorOutcome],
        "phases": [phase.word for phase in Phase],
        "memories": memories,
        "queues": queue_words(memories),
        "causes": cause_words(memories),
        "memory": _memory(graph, line, rows[Memory.DEVICE]),
        "baseline": _baseline(graph),
        "elsewhere": [
            _curve(name, line, bytes_) for name, bytes_ in by_memory(subject).items() if name != "device"
        ],
        "steps": _steps(subject, line),
        "tensors": _tensors(graph, schedule),
        "operations": {
            "name": list(graph.operations.name),
            "phase": graph.operations.phase.tolist(),
            "layer": list(graph.operations.layer),
        },
        "lives": [_lives(line, copies) for copies in rows.values()],
        "modules": modules(graph, schedule, rows[Memory.DEVICE]),
    }


def _memory(graph: Graph, line: Timeline, rows: Lifetimes) -> Document:
    found = moments(graph, line, rows)
    return {"at": _times(found.at), "step": found.step.tolist(), "sums": found.sums.T.tolist()}


def _baseline(graph: Graph) -> Document:
    """Return the curve of the baseline on a device of its peak: in more, collectives would come earlier."""
    schedule, machine, size = baseline_schedule(graph), any_size(graph), baseline(graph).peak
    line = timeline(graph, schedule, budget=size, machine=machine)
    curves = byte_curves(graph, schedule, budget=size, machine=machine)
    return _curve("baseline", line, curves[Memory.DEVICE])


def _curve(name: str, line: Timeline, bytes_: Ints) -> Document:
    """Return a curve of bytes over time. bytes_: bytes by step, shape (steps,)."""
    at = passed(line)
    if len(bytes_) and at[0] > 0:  # until the first step there is what the iteration before has left
        at, bytes_ = np.append([0.0], at), np.append(bytes_[-1:], bytes_)
    # The slice is for schedules without steps.
    shown = np.append([True], np.diff(bytes_) != 0)[: len(bytes_)]
    return {
        "name": name,
        "at": _times(at[:-1][shown]),
        "bytes": bytes_[shown].tolist(),
        "end": _short(at[-1]),
    }


def _steps(subject: Subject, line: Timeline) -> Document:
    """Return the columns of all steps but deletes.

    of: number of the operation or the tensor, depending on the queue.
    recomputed: whether the operation ran before.
    """
    graph, schedule, memories = subject.graph, subject.schedule, subject.memories
    shown = np.flatnonzero(line.queue != NOTHING)
    runs = list(schedule.rows())
    return {
        "step": shown.tolist(),
        "start": _times(line.start[shown]),
        "end": _times(line.end[shown]),
        "queue": [queue_index(queue, memories) for queue in line.queue[shown].tolist()],
        "idle": _times(line.idle[shown]),
        "cause": [cause_index(cause, memories) for cause in line.cause[shown].tolist()],
        "of": schedule.targets[shown].tolist(),
        "recomputed": recomputed_runs(schedule)[shown].astype(int).tolist(),
        "mode": [
            graph.operations.modes[target][where - 1].name if verb == Verb.COMPUTE and where else ""
            for verb, target, where in (runs[step] for step in shown.tolist())
        ],
    }


def _tensors(graph: Graph, schedule: Schedule) -> Document:
    """Return the columns of all tensors. readers: per tensor the operations that read or change it."""
    touched = [
        sorted({*graph.consumers[x].tolist(), *graph.mutators[x].tolist()}) for x in range(len(graph.tensors))
    ]
    return {
        "name": list(graph.tensors.name),
        "bytes": graph.tensors.bytes.tolist(),
        "kind": graph.tensors.kind.tolist(),
        "layer": list(graph.tensors.layer),
        "fate": fates(graph, schedule).tolist(),
        "readers": touched,
    }


def _lives(line: Timeline, rows: Lifetimes) -> Document:
    kept = rows.of(rows.tensor != WORKSPACE)
    start, end = bars(kept, passed(line), line.period)
    return {"tensor": kept.tensor.tolist(), "start": _times(start), "end": _times(end)}


def _times(seconds: Floats) -> list[float]:
    return [_short(value) for value in seconds.tolist()]


def _short(value: float) -> float:
    """Round to nine digits: a nanosecond in a second, at half the text."""
    return float(f"{value:.9g}")
