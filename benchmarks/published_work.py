"""Demands of the operations of published rows, kept so that times need no trace.

results/published_work.json.gz has, by a row's id, its operations, those that demand the same together: kind,
phase, field of `Gpu`, FLOPs, bytes, runs in an iteration.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

WORK = Path(__file__).parent / "results" / "published_work.json.gz"

Work = list[tuple[str, str, str, int, int, int, int, int]]


def load_work() -> dict[str, Work]:
    """Return the operations of every row, by its id."""
    return json.loads(gzip.decompress(WORK.read_bytes())) if WORK.exists() else {}


def save_work(name: str, work: Work) -> None:
    """Keep the operations of a row."""
    known = {**load_work(), name: work}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known))
    # No date within: the same rows are the same file.
    WORK.write_bytes(gzip.compress(f"{{{lines}}}".encode(), mtime=0))


def work_of_schedule(estimates: Any, batch: int, preset: Any, graph: Any, schedule: Any) -> Work:
    """Return the operations of a schedule of the graph of a batch."""
    from memplan.planner.schedule.schedule import Verb

    demanded = estimates.demanded(preset)
    operations = demanded.family.program(batch).operations
    by_name = {
        operation.name: (operation.phase.name, demand)
        for operation, demand in zip(operations, demanded.demands(batch), strict=True)
    }
    counts: Counter[tuple[Any, ...]] = Counter()
    for verb, target, _where in schedule.rows():
        if verb == Verb.COMPUTE:
            name = graph.operations.name[target]
            if name not in by_name:  # a gradient is added to its sum: it reads both, and writes the sum
                (x,) = graph.read_lists[target]
                counts["pointwise", "BACKWARD", "", 0, 3 * int(graph.tensors.bytes[x]), 0, 0] += 1
                continue
            phase, demand = by_name[name]
            work, kind, size = demand.work, demand.work.kind, demand.work.bytes
            if demand.passes is not None:
                kind, size = ("fused update" if demand.fused else "update"), demand.passes * demand.size
            counts[kind, phase, work.rate, work.flops, size, work.scores, work.keys] += 1
    return [(*key, count) for key, count in sorted(counts.items())]


def iteration_seconds(row: dict[str, Any], work: Work, fitted: Any = None) -> float:
    """Return the estimated seconds of a row's iteration, as the simulator has them without transfers.

    They are the device's, or those of the thread that launches, whichever takes longer. Of an update, the
    share of a micro-batch.

    fitted: efficiencies; None for memplan's own.
    """
    from memplan.graphs.graph import Phase
    from memplan.graphs.machines.presets import find_preset
    from memplan.profiling.profile.efficiency import efficiencies
    from memplan.profiling.profile.estimate import update_seconds
    from memplan.profiling.profile.roofline import Work as Demanded
    from memplan.profiling.profile.roofline import seconds

    preset, reached = find_preset(row["card"]), fitted or efficiencies()
    gpu, updates, device, thread = preset.gpu, preset.machine.updates, 0.0, 0.0
    for kind, phase, rate, flops, size, scores, keys, runs in work:
        count = runs / row["accumulation"] if phase == "UPDATE" else runs
        if kind.endswith("update"):
            device += count * update_seconds(size, gpu, updates, fused=kind == "fused update")
        else:
            device += count * seconds(Demanded(flops, size, rate, kind, scores, keys), gpu, reached)
        like, name, launches = (Phase[phase], kind, 1) if phase != "UPDATE" else update_launches(row)
        thread += count * launches * reached.launch_seconds(like, name, gpu.capability)
    return max(device, thread)


def update_launches(row: dict[str, Any]) -> tuple[Any, str, int]:
    """Return the phase, kind and number of launches of one weight's update.

    memplan's are those of foreach, a share of a few for all weights. A loop over weights launches each of
    AdamW's eight kernels for each weight, from Python.
    """
    from memplan.graphs.graph import Phase

    looped = row.get("optimizer", {}).get("kind") == "forloop"
    return (Phase.FORWARD, "pointwise", 8) if looped else (Phase.UPDATE, "update", 1)
