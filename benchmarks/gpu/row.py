"""Rows of one process: a model trained in one way, at one or more budgets; a line of JSON per row.

    plain      eager PyTorch, without a cap
    ours       the graph measured once, a row `profile`; then per budget the plan by --solver, with addresses:
               the budget holds the whole arena
    others     contestants.py

On CUDA the process' memory is capped before its iterations, and the allocator counts. Ours is set up before
that: weights and states that it keeps on the host are made on the device here. Without CUDA ours runs on the
simulated device, whose allocator counts whole blocks of 512 bytes, and the others on the CPU, where
storage alive is counted (devices/measuring/live_bytes.py) and nothing holds them to the budget: they fit if
their peak does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import contestants
import models
import torch
from memplan.devices.device.choice import device_of
from memplan.devices.device.device import Device, StreamDevice
from memplan.devices.measuring.this_machine import measure_machine
from memplan.graphs.errors import MemplanError
from memplan.graphs.files.files import save_graph
from memplan.graphs.graph import Graph
from memplan.graphs.machines.presets import find_machine
from memplan.model.iteration import Iteration, Updates, on_device, tensors_in, with_targets
from memplan.planner.baseline import baseline
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.peaks import device_peak
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.program.program import Program
from memplan.runtime.run.cycle import Terms
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays

ROUNDS = 5
SEGMENT_BYTES = 22 * 2**20
"""CUDA's allocator refuses a new segment above the cap, and rounds one of 1 to 10 MiB up to 20."""


def rows(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one process.

    asked: model, way, shares, baseline's peak in bytes or None, simulated, solver, its seconds, folder.
    """
    simulated, way = asked["simulated"], asked["way"]
    torch.manual_seed(0)
    built = (models.SMALL if simulated else models.LARGE)[asked["model"]]()
    module, inputs, *rest = built
    loss_fn, targets = [*rest, None, None][:2]
    place = "cpu" if simulated else "cuda"
    batch = next(iter(inputs.values() if isinstance(inputs, dict) else inputs)).shape[0]
    iteration = on_device(Iteration(module, with_targets(inputs, targets), loss_fn), place)
    if way == "ours":
        found = _ours(iteration, asked)
    else:
        found = (_others(iteration, asked, share) for share in asked["shares"])
    for row in found:
        samples = {"samples": batch / row["time"]} if row.get("time") else {}
        yield {"way": way, **row, **samples}


# ── ours ────────────────────────────────────────────────────────────────────────────────────────────


def _ours(iteration: Iteration, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    parameters = iteration.module.parameters()
    optimizer = torch.optim.AdamW(parameters, contestants.LEARNING_RATE, fused=True)
    iteration = iteration._replace(updates=Updates(optimizer))
    start = perf_counter()
    program = trace_real_layouts(iteration)
    traced = perf_counter()
    measured = measure_program(program, residents(program, iteration))
    graph = graph_from(program, measured, block_bytes=512)  # as both allocators count
    profiled = perf_counter()
    machine = find_machine("rtx3060") if asked["simulated"] else measure_machine("cuda").machine
    graph = replace(graph, machine=machine)
    save_graph(graph, Path(asked["folder"]) / f"{asked['model']}.graph.json.gz")
    eager = baseline(graph)
    seconds = f"traced in {traced - start:.0f} s, measured in {profiled - traced:.0f} s"
    note = f"the baseline as the graph has it; {len(program.operations)} operations, {seconds}"
    yield {"way": "profile", "share": 1.0, "peak": eager.peak, "time": eager.time, "fits": True, "note": note}
    for share in asked["shares"]:
        yield {"share": share, **_noted(lambda share=share: _plan(iteration, program, graph, asked, share))}


def _plan(
    iteration: Iteration, program: Program, graph: Graph, asked: dict[str, Any], share: float
) -> dict[str, Any]:
    peak = baseline(graph).peak
    budget = int(share * peak)
    constant = device_of(program.device).constant_bytes()
    simulated = SimulatedDevice(capacity=4 * peak, delays=lambda seed: Delays(seed, 0.0))
    problem = Problem(graph, budget - constant, graph.machine)
    start = perf_counter()
    found = solve(asked["solver"], problem, asked["seconds"], bound_seconds=0, addresses=True)
    note = f"solved in {perf_counter() - start:.0f} s"
    device = simulated if asked["simulated"] else None
    terms = Terms(graph, found.budget, graph.machine, device=device, layout=found.layout)
    step = PlannedStep(iteration, program, found.schedule, terms)
    counts = step.device
    assert isinstance(counts, StreamDevice)
    try:
        for _ in range(2):  # makes the optimizer's states; then what moves is where an iteration leaves it
            step.run(iteration.inputs)
        counts.synchronize()
        counts.constant_bytes()  # frees the workspaces of other threads
        _cap(counts, budget)
        counts.reset_peak()
        seconds = _seconds(lambda: step.run(iteration.inputs), counts)
        measured, reserved = counts.peak_bytes(), counts.reserved_peak_bytes()
    finally:
        _cap(counts, None)
        step.restore_to_device()
    if asked.get("compare"):
        note += f"; {compare(iteration, step)}"
    assert found.layout is not None
    return {
        "budget": budget,
        "fits": measured <= budget,
        "peak": measured,
        "reserved": reserved,
        "time": seconds,
        "planned_peak": found.figures.peak + constant,
        "planned_arena": found.layout.size + constant,
        "planned_time": found.figures.time,
        "note": note,
    }


# ── others ──────────────────────────────────────────────────────────────────────────────────────────


def _others(iteration: Iteration, asked: dict[str, Any], share: float) -> dict[str, Any]:
    budget = None if asked["baseline_peak"] is None else int(share * asked["baseline_peak"])

    def measured() -> dict[str, Any]:
        device = device_of("cpu" if asked["simulated"] else "cuda")
        ready = contestants.ready(asked["way"], iteration, share)
        _cap(device, budget)
        ready.run()  # makes the optimizer's states
        module = iteration.module
        there = [*module.parameters(), *module.buffers(), *tensors_in(iteration.inputs).values()]
        sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in there}
        states = 2 * sum(x.nbytes for x in module.parameters())  # AdamW's; the allocator counts them on CUDA
        peak = device_peak(ready.run, device, sum(sizes.values()) + states)
        reserved = device.reserved_peak_bytes() if isinstance(device, StreamDevice) else None
        seconds = _seconds(ready.run, device)
        fits = budget is None or peak <= budget
        return {"fits": fits, "peak": peak, "reserved": reserved, "time": seconds, "note": ready.note}

    return {"share": share, "budget": budget, **_noted(measured)}


# ── both ────────────────────────────────────────────────────────────────────────────────────────────


def _noted(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The row, or why there is none."""
    try:
        return measure()
    except torch.OutOfMemoryError as error:
        return {"fits": False, "note": "out of memory: " + " ".join(str(error).split())[:400]}
    except MemplanError as error:
        return {"fits": None, "note": str(error).partition("\n")[0]}


def _cap(device: Device, budget: int | None) -> None:
    """No more memory than the budget and a segment for this process from now on, if the device is CUDA's."""
    if device.torch.type == "cuda":
        torch.cuda.empty_cache()
        _free, whole = torch.cuda.mem_get_info()
        share = 1.0 if budget is None else min(1.0, (budget + SEGMENT_BYTES) / whole)
        torch.cuda.set_per_process_memory_fraction(share)


def _seconds(run: Callable[[], object], device: Device) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        run()
        device.synchronize()
        times.append(perf_counter() - start)
    return median(times)


def main() -> None:
    for row in rows(json.loads(sys.argv[1])):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
