"""Profiles on a busy machine, held against eager PyTorch and against profiles with no load from here.

    python benchmarks/busy.py [--loops N] [--runs N] [--quiet N] [--threads N] [--models convnet …]

Protocol. Per model: `plan profile`'s measurement `--quiet` times without load, of which each operation keeps
its fastest; then `--runs` times with `--loops` processes that loop. *sum / eager*: the operations' times over
those of eager PyTorch's operations, each the fastest of its rounds (`check_against_eager`). *ratios*: the
share of an operation in the sum, over its share in the quiet profile; the median and the largest deviation
among the operations that take 1 % of the time or more. *said*: runs after which the command names a doubt.
*before*: the sum of medians of three to 25 runs in a row, as up to 2026-11-25, measured right after.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import cycle, islice
from math import ceil
from typing import Any

import torch
from memplan.devices.device.choice import device_of
from memplan.devices.measuring.synthetic_inputs import SyntheticInputs, signature
from memplan.model.iteration import Iteration
from memplan.profiling.compare.verdict import verdict
from memplan.profiling.profile.against_eager import check_against_eager, doubt_line
from memplan.profiling.profile.profile import graph_from, measured_in_rounds
from memplan.torch_support.below_autograd import as_traced
from memplan.tracing.output_layouts import residents
from memplan.tracing.trace import trace
from torch import nn

LOOP = "while True: pass"
SMALL_SHARE = 0.01


class Block(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.skip = nn.Conv2d(channels, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.skip(x)).relu()


def convnet():
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)]
    blocks += [Block(64, 128, 2), Block(128, 128, 1)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, head)
    return Iteration(net, (torch.randn(8, 3, 48, 48),), cross_entropy)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            sizes: Any = {"n_layer": 2, "n_head": 4, "n_embd": 256, "vocab_size": 2000, "n_positions": 128}
            self.model = GPT2LMHeadModel(GPT2Config(**sizes))

        def forward(self, tokens):
            return self.model(tokens, labels=tokens, use_cache=False).loss

    return Iteration(Loss(), (torch.randint(2000, (4, 128)),))


class Tagger(nn.Module):
    """A model of gates written out, step by step: many small operations beside a few products."""

    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.gates = nn.Linear(2 * width, 3 * width)
        self.out = nn.Linear(width, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            keep, new, value = self.gates(torch.cat([x[:, step], state], -1)).chunk(3, -1)
            state = keep.sigmoid() * state + new.sigmoid() * value.tanh()
            states.append(state)
        return self.out(torch.stack(states, 1)).log_softmax(-1).square().mean()


def tagger():
    return Iteration(Tagger(), (torch.randint(500, (64, 12)),))


def cross_entropy(output):
    return nn.functional.cross_entropy(output, torch.arange(len(output)) % output.shape[1])


MODELS = {"convnet": convnet, "gpt2": gpt2, "tagger": tagger}


def profiled(iteration, program, known):
    start = time.perf_counter()
    rounds = measured_in_rounds(program, known)
    eager = verdict(iteration, program, graph_from(program, rounds.measurements()))
    whole = eager["seconds"]
    measuring = time.perf_counter() - start
    check = check_against_eager(iteration, program, rounds, eager)
    assert check is not None
    measured = rounds.measurements()
    return {
        "seconds": [one.seconds for one in measured],
        "sum": check.sum,
        "eager": check.eager,
        "whole": whole,
        "said": doubt_line(measured, check),
        "wall": time.perf_counter() - start,
        "measuring": measuring,
    }


def before(program, known):
    """The sum of the operations' times as they were measured before there were rounds."""
    inputs, device, medians, total = SyntheticInputs(program, known), device_of(program.device), {}, 0.0
    with as_traced(program.device):
        for operation in program.operations:
            key = signature(program, operation.call)
            if key not in medians:
                calls = inputs.calls()
                calls[0]()
                warm = device.timed(calls[-1:]).seconds
                count = min(25, max(3, ceil(0.02 / max(warm, 1e-9))))
                medians[key] = statistics.median(
                    device.timed([call]).seconds for call in islice(cycle(calls), count)
                )
            total += medians[key]
            inputs.advance()
    return total


@contextlib.contextmanager
def loops(count):
    processes = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        time.sleep(1)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def deviations(found, quiet):
    """Relative differences between an operation's share in the sum and that in the quiet profile."""
    total, quiet_total = sum(found), sum(quiet)
    return [
        abs(one / total / (other / quiet_total) - 1)
        for one, other in zip(found, quiet, strict=True)
        if other >= SMALL_SHARE * quiet_total
    ]


def told(one, fastest):
    whole, total, eager = (1e3 * one[key] for key in ("whole", "sum", "eager"))
    return (
        f"sum {total:.1f} ms, eager {eager:.1f} ({total / eager:.2f}), whole {whole:.1f}, "
        f"quiet {1e3 * sum(fastest):.1f}, worst ratio {max(one['ratios']):.0%}, {one['measuring']:.0f} + "
        f"{one['wall'] - one['measuring']:.0f} s, before {one['before']}, {one['said']}"
    )


def span(values, digits=1):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def row(name, options):
    torch.manual_seed(0)
    iteration = MODELS[name]()
    program = trace(iteration)
    known = residents(program, iteration)
    load = os.getloadavg()[0]
    quiet = [profiled(iteration, program, known) for _ in range(options.quiet)]
    fastest = [min(each) for each in zip(*(one["seconds"] for one in quiet), strict=True)]
    runs = []
    with loops(options.loops):
        for _ in range(options.runs):
            one = profiled(iteration, program, known)
            one["before"] = before(program, known) if options.before else None
            one["ratios"] = deviations(one["seconds"], fastest)
            runs.append(one)
            print(f"  {name}: {told(one, fastest)}", file=sys.stderr)
    close = sum(max(one["sum"], one["eager"]) <= 1.3 * min(one["sum"], one["eager"]) for one in runs)
    near = sum(max(one["ratios"]) <= 0.2 for one in runs)
    every = [each for one in runs for each in one["ratios"]]
    cells = [
        name,
        torch.get_num_threads(),
        len(program.operations),
        f"{load:.1f}",
        f"{1e3 * sum(fastest):.1f}",
        span([1e3 * one["sum"] for one in runs]),
        span([one["sum"] / one["eager"] for one in runs], 2),
        f"{close} of {len(runs)}",
        f"{statistics.median(every):.0%}, {max(every):.0%}",
        f"{near} of {len(runs)}",
        sum(one["said"] is not None for one in runs),
        f"{statistics.median(one['wall'] for one in runs):.0f}",
        span([1e3 * one["before"] for one in runs], 0) if options.before else "",
    ]
    return "| " + " | ".join(map(str, cells)) + " |", {"name": name, "quiet": quiet, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--loops", type=int, default=4)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quiet", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = [row(name, options) for name in options.models]
    heads = ["model", "threads", "operations", "load before", "quiet sum ms", "sum ms", "sum / eager"]
    heads += ["within 1.3", "ratios off: median, most", "all within 20 %", "said", "seconds", "before ms"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    print("\n".join(line for line, _ in found))
    if options.json:
        with open(options.json, "w") as file:
            json.dump([data for _, data in found], file)


if __name__ == "__main__":
    main()
