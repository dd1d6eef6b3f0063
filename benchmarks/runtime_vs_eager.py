"""The time of a planned iteration beside eager PyTorch's: what it costs to run a schedule as Python code.

Protocol. Model: GPT-2 (transformers, from its config), 6 layers, batch 4, 128 tokens, dropout on, forward
and backward. The schedule is the plain one: nothing is recomputed, every tensor is deleted after its last
use (an unlimited budget). Both run in one process, with as many threads as given; after one warm-up each
they take turns, and the ratio is that of the medians. The time is the process's own (all its threads),
which a busy machine disturbs least. Gradients are dropped after each iteration, outside the time. First the
results are compared bitwise.

    python benchmarks/runtime_vs_eager.py [--rounds 15] [--threads 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch
from memplan.planner.plain import plain_schedule
from memplan.runtime.compare.eager import compare, run_eager
from memplan.runtime.model.iteration import Iteration
from memplan.runtime.program.graph import Cost, graph_of
from memplan.runtime.run.execute import PlannedStep
from memplan.runtime.trace.trace import trace
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(layers: int = 6, width: int = 768, batch: int = 4, length: int = 128) -> Iteration:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    tokens = torch.randint(config.vocab_size, (batch, length))
    return Iteration(GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens})


def alternate(runs: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of processor time per run and round; in each round every run once."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, column in zip(runs, seconds, strict=True):
            start = process_time()
            outcome = run()
            column.append(process_time() - start)
            del outcome
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    iteration = gpt2()
    program = trace(iteration)
    graph = graph_of(program, [Cost(0.0)] * len(program.operations))
    step = PlannedStep(iteration, program, plain_schedule(graph))
    print(f"trace {program.trace_seconds:.2f} s, {len(program.operations)} operations")
    print(compare(iteration, step))
    names = ("eager", "planned")
    runs = [lambda: run_eager(iteration), lambda: step.run(iteration.inputs)]
    seconds = alternate(runs, options.rounds)
    for name, column in zip(names, seconds, strict=True):
        low, middle, high = quantiles(column, n=4)
        print(f"{name:8} median {middle * 1e3:7.1f} ms   quartiles {low * 1e3:.1f} to {high * 1e3:.1f} ms")
    print(f"ratio planned / eager {median(seconds[1]) / median(seconds[0]):.3f}")


if __name__ == "__main__":
    main()
