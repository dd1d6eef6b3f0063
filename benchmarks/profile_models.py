"""Profile the example models, and hold the predictions against what is measured. Prints a markdown table.

    python benchmarks/profile_models.py [--threads N] [--rounds N] [model ...]

Protocol. All models in one process, one after the other, on the CPU with N threads (default 1: on a busy
machine two threads wait for each other). *trace* and *measure* are wall-clock seconds of one run. *peak*
is the most bytes alive at once, residents included: predicted by replaying the plain schedule, measured
by the allocator's events while that schedule runs. *program* and *eager* are medians over the rounds, in
which the two take turns, after one round that does not count; *sum* is that of the operations' times.
With one thread all three are the processor's time for this process, which others disturb least.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.graph import Graph
from memplan.model.file import load_model_file
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.verdict import verdict
from memplan.profiling.profile.profile import graph_from, measure_program, quality
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace

EXAMPLES = Path(__file__).parents[1] / "examples"
MODELS = ["mlp", "gpt2", "bert", "llama", "t5", "vit", "transformer", "resnet50", "unet"]
MIB = 2**20
HEADER = (
    "| model | operations | tensors | trace s | measure s | distinct | spread | equal to eager "
    "| peak predicted / measured MiB | sum ms | program ms | sum / program | eager ms | program / eager |"
)


def seconds(call, clock=time.perf_counter):
    start = clock()
    result = call()
    return clock() - start, result


def taking_turns(calls, rounds):
    """Median seconds of each call."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times = [[seconds(call, clock)[0] for call in calls] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def resident_bytes(graph: Graph) -> int:
    return int(graph.tensors.bytes[graph.resident].sum())


def row(name, rounds):
    iteration = load_model_file(str(EXAMPLES / f"{name}.py")).build()
    trace_seconds, program = seconds(lambda: trace(iteration))
    known = residents(program, iteration)
    measure_seconds, measured = seconds(lambda: measure_program(program, known))
    graph = graph_from(program, measured, name=name)
    schedule = baseline_schedule(graph)
    step = PlannedStep(iteration, program, schedule)
    eager = verdict(iteration, program, graph)
    equal = "yes" if eager["equal"] else f"{eager['first']}: {eager['largest']:.1e}"
    predicted = simulate(graph, schedule).figures
    peak = live_peak(lambda: step.run(iteration.inputs)).peak_bytes + resident_bytes(graph)
    own, baseline = taking_turns((lambda: step.run(iteration.inputs), lambda: run_eager(iteration)), rounds)
    figures = quality(measured)
    return (
        f"| {name} | {len(graph.operations)} | {len(graph.tensors)} "
        f"| {trace_seconds:.1f} | {measure_seconds:.1f} "
        f"| {figures['signatures']} | {figures['spread']:.0%} | {equal} "
        f"| {predicted.peak / MIB:.2f} / {peak / MIB:.2f} ({peak / predicted.peak - 1:+.2%}) "
        f"| {1000 * predicted.time:.0f} | {1000 * own:.0f} | {predicted.time / own:.2f} "
        f"| {1000 * baseline:.0f} | {own / baseline:.2f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.rounds} rounds\n")
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for name in options.models:
        print(row(name, options.rounds), flush=True)


if __name__ == "__main__":
    main()
