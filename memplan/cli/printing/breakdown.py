"""Breakdown of a schedule's time and memory: by phase, by recomputation, and at the peak."""

from __future__ import annotations

from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.graph import Graph, Kind, Phase
from ...planner.addresses.lifetimes import WORKSPACE, Lifetimes
from ...planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb

Entry = dict[str, Any]
"""A row as `--json` prints it. Times in seconds, sizes in bytes."""


def phases(graph: Graph, schedule: Schedule) -> list[Entry]:
    """Return per phase: number of operations, runs, their time, and how much of it is recomputation."""
    runs, total, rerun = _by_operation(graph, schedule)
    phase = graph.operations.phase
    return [
        {
            "phase": kind.word,
            "operations": int((phase == kind).sum()),
            "runs": int(runs[phase == kind].sum()),
            "time": float(total[phase == kind].sum()),
            "recompute_seconds": float(rerun[phase == kind].sum()),
        }
        for kind in Phase
        if (phase == kind).any()
    ]


def recomputed(graph: Graph, schedule: Schedule) -> list[Entry]:
    """Return the operations that run more than once, the longest recomputation first."""
    runs, _total, rerun = _by_operation(graph, schedule)
    rows = [
        {"operation": graph.operations.name[i], "runs": runs.item(i), "recompute_seconds": rerun.item(i)}
        for i in (runs > 1).nonzero()[0].tolist()
    ]
    return sorted(rows, key=lambda row: (-float(row["recompute_seconds"]), str(row["operation"])))


def transfers(graph: Graph, schedule: Schedule) -> Entry:
    """Return number and bytes of offloads and of prefetches; of sharded training, of gathers and scatters
    too."""
    # Targets of computes are operations, so they become 0, an index that is valid anyhow.
    tensors = schedule.targets * (schedule.verbs != Verb.COMPUTE)
    sizes, spread = graph.tensors.bytes[tensors], graph.spread[tensors]
    kinds = [(Verb.OFFLOAD, False, "offloads"), (Verb.PREFETCH, False, "prefetches")]
    if graph.tensors.spread:
        kinds += [(Verb.PREFETCH, True, "gathers"), (Verb.OFFLOAD, True, "scatters")]
    found: Entry = {}
    for verb, between_ranks, name in kinds:
        chosen = (schedule.verbs == verb) & (spread == between_ranks)
        if between_ranks or not graph.tensors.spread or chosen.any():
            found[name] = {"steps": int(chosen.sum()), "bytes": int(sizes[chosen].sum())}
    return found


def collectives(graph: Graph, schedule: Schedule) -> Entry:
    """Return number and seconds of the runs of collectives that are operations."""
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    chosen = runs[np.isin(runs, list(graph.operations.comm))]
    return {"steps": len(chosen), "time": float(graph.operations.time[chosen].sum())}


def peak(graph: Graph, schedule: Schedule, rows: Lifetimes) -> Entry:
    """Return the first step at which the device holds most: bytes by kind, and the tensors, largest first.

    rows: the device's lifetimes. A copy whose delete waits for a transfer is still resident.
    other: bytes of workspaces, and of outputs recomputed while a copy is resident.
    """
    live = rows.live()
    at = int(live.argmax())
    verb, target, _where = list(schedule.rows())[at]
    of = graph.operations.name if verb == Verb.COMPUTE else graph.tensors.name
    there, sizes = (np.repeat(column, rows.there(at)) for column in (rows.tensor, rows.size))
    order = np.argsort(there[there != WORKSPACE], kind="stable")
    there, sizes = (column[there != WORKSPACE][order] for column in (there, sizes))
    kinds = graph.tensors.kind[there]
    # Stable: tensors of equal size stay in the graph's order.
    order = np.argsort(-sizes, kind="stable")
    return {
        "step": at,
        "what": f"{Verb(verb).word} {of[target]}",
        "bytes": int(live[at]),
        "by_kind": {kind.word: int(sizes[kinds == kind].sum()) for kind in Kind if (kinds == kind).any()},
        "other": int(live[at] - sizes.sum()),
        "tensors": [
            {"tensor": graph.tensors.name[x], "kind": Kind(graph.tensors.kind[x]).word, "bytes": size}
            for x, size in zip(there[order].tolist(), sizes[order].tolist(), strict=True)
        ],
    }


def launches(graph: Graph, schedule: Schedule) -> tuple[float, float]:
    """Return the seconds per iteration of computations on the device, and of launching all computations."""
    computes = schedule.verbs == Verb.COMPUTE
    ran, modes = schedule.targets[computes], schedule.wheres[computes]
    standard, other = ran[modes == DEFAULT_MODE], modes != DEFAULT_MODE
    runs = list(zip(ran[other].tolist(), modes[other].tolist(), strict=True))
    on_device = (graph.seconds(*run) for run in runs if not graph.on_host(*run))
    launching = (graph.launch(*run) for run in runs)
    time, launch = graph.operations.time[standard].tolist(), graph.operations.launch[standard].tolist()
    return fsum([*time, *on_device]), fsum([*launch, *launching])


def _by_operation(
    graph: Graph, schedule: Schedule
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return per operation: its runs, the time of all of them, the time of all but the first."""
    computes = schedule.verbs == Verb.COMPUTE
    ran, modes = schedule.targets[computes], schedule.wheres[computes]
    seconds = graph.operations.time[ran]
    for run in (modes != DEFAULT_MODE).nonzero()[0].tolist():
        seconds[run] = graph.operations.modes[ran.item(run)][modes.item(run) - 1].time
    count = len(graph.operations)
    total: NDArray[np.float64] = np.bincount(ran, seconds, minlength=count).astype(np.float64)
    once, first = np.unique(ran, return_index=True)  # indices of first occurrences: the first runs
    rerun = total.copy()
    rerun[once] -= seconds[first]
    return np.bincount(ran, minlength=count), total, rerun
