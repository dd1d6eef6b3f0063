"""The time of a step beside plain PyTorch's: what it costs to run a schedule as Python code.

Protocol. Models of `examples/`, forward and backward, gradients dropped after each iteration, outside the
time. The schedule is the plain one, nothing is recomputed (an unlimited budget): so the ratio is the
runtime's alone. Both run in one process, with as many threads as given; after one warm-up each they take
turns, and the ratio is that of the medians. The time is the process's own (all its threads), which a busy
machine disturbs least. Planning compares the results with plain PyTorch's, bit by bit.

    python benchmarks/runtime_vs_eager.py [--models gpt2,resnet50,vit] [--rounds 15] [--threads 1]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import memplan
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


class Runs:
    """An iteration of plain PyTorch, and one by a step, of an example."""

    def __init__(self, name: str) -> None:
        self.model, self.batch, *rest = import_module(name).build()
        self.loss_fn, self.labels = (*rest, None, None)[:2]
        options = {"loss_fn": self.loss_fn, "targets": self.labels, "solver": "store-all"}
        self.step = memplan.optimize(self.model, self.batch, budget="100%", cache=False, **options)

    def eager(self) -> None:
        batch = self.batch
        output = self.model(**batch) if isinstance(batch, dict) else self.model(*batch)
        loss = output.loss if self.loss_fn is None else self.loss_fn(output, self.labels)
        loss.backward()

    def planned(self) -> None:
        given = {} if self.labels is None else {"targets": self.labels}
        self.step(self.batch, **given).backward()


def alternate(runs: list[Callable[[], Any]], clear: Callable[[], Any], rounds: int) -> list[list[float]]:
    """Seconds of processor time per run and round; in each round every run once."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, column in zip(runs, seconds, strict=True):
            start = process_time()
            run()
            if number:  # the first is the warm-up
                column.append(process_time() - start)
            clear()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="gpt2,resnet50,vit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| model | eager ms | planned ms | speed of plain PyTorch |\n|---|---|---|---|")
    for name in options.models.split(","):
        runs = Runs(name)
        eager, planned = alternate([runs.eager, runs.planned], runs.model.zero_grad, options.rounds)
        cells = [f"{median(each) * 1e3:.1f} ({spread(each)})" for each in (eager, planned)]
        print(f"| {name} | {' | '.join(cells)} | {median(eager) / median(planned):.3f} |", flush=True)


def spread(seconds: list[float]) -> str:
    low, _middle, high = quantiles(seconds, n=4)
    return f"{low * 1e3:.1f} to {high * 1e3:.1f}"


if __name__ == "__main__":
    main()
