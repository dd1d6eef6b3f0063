"""One row, in a process of its own: a model trained in one way; its figures as JSON on the last line.

    profile    traced and measured once, for all rows of ours: plain PyTorch's peak as the graph has it
    plain      PyTorch as it is, without a cap
    ours       the plan for the budget, by --solver, with addresses: the budget holds the whole arena
    others     contestants.py

On CUDA the process' memory is capped before its iterations, and the allocator counts. Ours is set up before
that: weights and states that it keeps on the host are made on the device here. Without CUDA ours runs on the
simulated device, whose allocator counts whole blocks of 512 bytes, and the others on the CPU, where
storage alive is counted (runtime/measuring/live_bytes.py) and nothing holds them to the budget: they fit if
their peak does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import contestants
import models
import torch
from memplan.graphs.errors import MemplanError
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.machines.presets import find_machine
from memplan.planner.plain import baseline
from memplan.runtime.compare.peaks import device_peak
from memplan.runtime.device.choice import device_of
from memplan.runtime.device.device import Device, StreamDevice
from memplan.runtime.measuring.this_machine import measure_machine
from memplan.runtime.model.iteration import Iteration, Updates, on_device, tensors_in, with_targets
from memplan.runtime.profile.profile import graph_from, measure_program
from memplan.runtime.run.cycle import Terms
from memplan.runtime.run.execute import PlannedStep
from memplan.runtime.trace.align import aligned
from memplan.runtime.trace.settle import residents, settled
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from simulated_device.device import SimulatedDevice
from simulated_device.threads import Delays

ROUNDS = 5


def row(asked: dict[str, Any]) -> dict[str, Any]:
    """asked: model, way, share, budget in bytes or None, simulated, solver, its seconds, folder."""
    simulated, budget, folder = asked["simulated"], asked["budget"], Path(asked["folder"])
    torch.manual_seed(0)
    built = (models.SMALL if simulated else models.LARGE)[asked["model"]]()
    module, inputs, *rest = built
    loss_fn, targets = [*rest, None, None][:2]
    place = "cpu" if simulated else "cuda"
    iteration = on_device(Iteration(module, with_targets(inputs, targets), loss_fn), place)
    if asked["way"] == "profile":
        return _profiled(iteration, folder / f"{asked['model']}.graph.json.gz", simulated)
    found = _ours(iteration, asked, folder) if asked["way"] == "ours" else _others(iteration, asked)
    batch = next(iter(inputs.values() if isinstance(inputs, dict) else inputs)).shape[0]
    return {**found, "samples": batch / found["time"], "fits": budget is None or found["peak"] <= budget}


def _with_updates(iteration: Iteration) -> Iteration:
    parameters = iteration.module.parameters()
    optimizer = torch.optim.AdamW(parameters, contestants.LEARNING_RATE, fused=True)
    return iteration._replace(updates=Updates(optimizer))


def _profiled(iteration: Iteration, path: Path, simulated: bool) -> dict[str, Any]:
    iteration = _with_updates(iteration)
    program = settled(iteration)
    measured = measure_program(program, residents(program, iteration))
    graph = graph_from(program, measured, block_bytes=512)  # as both allocators count
    machine = find_machine("rtx3060") if simulated else measure_machine("cuda").machine
    save_graph(replace(graph, machine=machine), path)
    plain = baseline(graph)
    return {"peak": plain.peak, "time": plain.time, "note": "plain PyTorch as the graph has it"}


def _ours(iteration: Iteration, asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    iteration, budget = _with_updates(iteration), asked["budget"]
    graph = load_graph(folder / f"{asked['model']}.graph.json.gz")
    program = aligned(settled(iteration), graph)
    capacity = 4 * baseline(graph).peak  # segments of 2 MiB beside small arenas
    simulated = SimulatedDevice(capacity=capacity, delays=lambda seed: Delays(seed, 0.0))
    device = simulated if asked["simulated"] else None
    problem = Problem(graph, budget, graph.machine)
    found = solve(asked["solver"], problem, asked["seconds"], bound_seconds=0, addresses=True)
    terms = Terms(graph, found.budget, graph.machine, device=device, layout=found.layout)
    step = PlannedStep(iteration, program, found.schedule, terms)
    counts = step.device
    assert isinstance(counts, StreamDevice)
    for _ in range(2):  # makes the optimizer's states; then what moves is where an iteration leaves it
        step.run(iteration.inputs)
    counts.synchronize()
    _cap(counts, budget)
    counts.reset_peak()
    seconds = _seconds(lambda: step.run(iteration.inputs), counts)
    assert found.layout is not None
    return {
        "peak": counts.peak_bytes(),
        "reserved": counts.reserved_peak_bytes(),
        "time": seconds,
        "planned_peak": found.figures.peak,
        "planned_arena": found.layout.size,
        "planned_time": found.figures.time,
    }


def _others(iteration: Iteration, asked: dict[str, Any]) -> dict[str, Any]:
    device = device_of("cpu" if asked["simulated"] else "cuda")
    ready = contestants.ready(asked["way"], iteration, asked["share"])
    _cap(device, asked["budget"])
    ready.run()  # makes the optimizer's states
    module = iteration.module
    there = [*module.parameters(), *module.buffers(), *tensors_in(iteration.inputs).values()]
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in there}
    states = 2 * sum(x.nbytes for x in module.parameters())  # AdamW's two; counted by the allocator on CUDA
    peak = device_peak(ready.run, device, sum(sizes.values()) + states)
    reserved = device.reserved_peak_bytes() if isinstance(device, StreamDevice) else None
    seconds = _seconds(ready.run, device)
    return {"peak": peak, "reserved": reserved, "time": seconds, "note": ready.note}


def _cap(device: Device, budget: int | None) -> None:
    """No more memory than the budget for this process from now on, where the device is CUDA's."""
    if budget is not None and device.torch.type == "cuda":
        torch.cuda.empty_cache()
        _free, whole = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / whole))


def _seconds(run: Callable[[], object], device: Device) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        start = perf_counter()
        run()
        device.synchronize()
        times.append(perf_counter() - start)
    return median(times)


def main() -> None:
    asked = json.loads(sys.argv[1])
    try:
        found = row(asked)
    except torch.OutOfMemoryError:
        found = {"fits": False, "note": "out of memory"}
    except MemplanError as error:
        found = {"fits": None, "note": str(error).partition("\n")[0]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
