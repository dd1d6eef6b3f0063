"""Cost of Python in a planned iteration: a GPT-2 so narrow that its kernels take little, against eager.

Protocol. The schedule is the baseline, at an unlimited budget, so the ratio is the runtime's alone. Eager and
planned iterations alternate in one process, one thread, in blocks of a few iterations; times are of the
processor, which a busy machine disturbs least; the ratio is that of the medians. Then planned iterations
alone, with a clock around each part of the runtime:

    guards      module, hooks, modes, tensors and optimizer are what was planned
    arguments   the batch and the values that the code read are what was planned
    generated   the schedule's code; the views in it are timed in a copy of it
    backward    loss.backward() of the loop, which hands the gradients to `.grad`
    rest        everything else between the loop and the schedule's code

Three loops: gradients alone, AdamW in the loop, AdamW in the plan.

    python benchmarks/overhead.py [--layers 12] [--width 16] [--tokens 8] [--rounds 12]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its threads

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from statistics import median
from time import process_time
from typing import Any

import memplan
import torch
from memplan.steps.execute import PlannedStep
from memplan.training.plans.plans import Plans
from memplan.training.step.loss import Losses
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

LOOPS = ("gradients", "AdamW in the loop", "AdamW in the plan")
PARTS = {
    "guards": ((PlannedStep, "check_unchanged"),),
    "arguments": ((PlannedStep, "given"), (PlannedStep, "check"), (Plans, "serving"), (Losses, "begin")),
}
"""The methods of the runtime in which each part's time is spent."""


class Training:
    """An eager and a planned training of one model and batch each, of equal weights."""

    def __init__(self, loop: str, layers: int, width: int, tokens: int) -> None:
        self._loop = loop
        batch = torch.randint(64, (1, tokens), generator=torch.Generator().manual_seed(0))
        self.batch: dict[str, Tensor] = {"input_ids": batch, "labels": batch}
        self.models = [gpt2(layers, width, tokens) for _ in range(2)]
        self.optimizers = [torch.optim.AdamW(model.parameters(), 1e-4) for model in self.models]
        options: dict[str, Any] = {"optimizer": self.optimizers[1]} if loop == LOOPS[2] else {}
        options |= {"cache": False, "replan_on_drift": False}  # the code that is timed stays
        self.step = memplan.optimize(self.models[1], self.batch, budget="100%", solver="store-all", **options)

    def eager(self) -> Tensor:
        loss: Tensor = self.models[0](**self.batch).loss
        loss.backward()
        if self._loop != LOOPS[0]:
            self.optimizers[0].step()
            self.optimizers[0].zero_grad()
        return loss

    def planned(self) -> Tensor:
        loss = self.step(self.batch)
        if self._loop != LOOPS[2]:
            loss.backward()
        if self._loop == LOOPS[1]:
            self.optimizers[1].step()
            self.optimizers[1].zero_grad()
        return loss

    def clear(self) -> None:
        for model in self.models:
            model.zero_grad()


def gpt2(layers: int, width: int, tokens: int) -> GPT2LMHeadModel:
    """Return a GPT-2 without dropout, the same at each call."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=tokens,
        n_embd=width,
        n_layer=layers,
        n_head=2,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config).train()


def seconds(run: Callable[[], object], clear: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each run; what `clear` does between them is not counted."""
    found: list[float] = []
    for _ in range(times):
        begun = process_time()
        run()
        found.append(process_time() - begun)
        clear()
    return found


class Clocks:
    """Seconds of each part of a planned iteration, without those of the parts within it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._within: list[float] = []

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        self._within.append(0.0)
        begun = process_time()
        try:
            yield
        finally:
            taken = process_time() - begun
            self.spent[name] = self.spent.get(name, 0.0) + taken - self._within.pop()
            if self._within:
                self._within[-1] += taken

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.part(name):
                return function(*arguments, **keywords)

        return timed


def parts(training: Training, iterations: int) -> dict[str, float]:
    """Return the median seconds that planned iterations spend in each part."""
    clocks, step = Clocks(), training.step.plans[0]
    plan: Any = step
    run = plan._run
    methods = [(name, owner, method) for name, row in PARTS.items() for owner, method in row]
    before = [getattr(owner, method) for _name, owner, method in methods]
    backward = Tensor.backward
    try:
        for (name, owner, method), function in zip(methods, before, strict=True):
            setattr(owner, method, clocks.around(name, function))
        plan._run = clocks.around("generated", run)
        Tensor.backward = clocks.around("backward", backward)
        rows: list[dict[str, float]] = []
        for _ in range(iterations):
            clocks.spent = {}
            with clocks.part("rest"):
                training.planned()
            rows.append(clocks.spent)
            training.clear()
    finally:
        plan._run, Tensor.backward = run, backward
        for (_name, owner, method), function in zip(methods, before, strict=True):
            setattr(owner, method, function)
    return {name: median(row.get(name, 0.0) for row in rows) for name in rows[0]}


def views(training: Training, iterations: int) -> tuple[int, float]:
    """Return how many views the generated code makes, and the median seconds that it takes for them."""
    step: Any = training.step.plans[0]
    lines = step.source.splitlines()
    is_view = [made_by(line) <= step.program.views.keys() and bool(made_by(line)) for line in lines]
    text = "\n".join(timed_blocks(lines, is_view))
    spent: list[float] = []
    names = {**step._run.__globals__, "clock": process_time, "note": spent.append}
    exec(compile(text, "<timed views>", "exec"), names)
    run, empty = step._run, median(seconds(lambda: None, lambda: None, 1000))
    blocks = text.count("note(")
    rows: list[float] = []
    try:
        step._run = names["step"]
        for _ in range(iterations):
            spent.clear()
            training.planned()
            training.clear()
            rows.append(sum(spent) - blocks * empty)
    finally:
        step._run = run
    return sum(is_view), max(0.0, median(rows))


def made_by(line: str) -> set[int]:
    """Return the values that a line of generated code assigns."""
    left, equals, _right = line.partition(" = ")
    return {int(number) for number in re.findall(r"\bv(\d+)", left)} if equals else set()


def timed_blocks(lines: list[str], timed: list[bool]) -> Iterator[str]:
    """Yield the lines with a clock around each block of those that are to be timed."""
    for line, now, before, after in zip(lines, timed, [False, *timed[:-1]], [*timed[1:], False], strict=True):
        indent = line[: len(line) - len(line.lstrip())]
        if now and not before:
            yield f"{indent}begun = clock()"
        yield line
        if now and not after:
            yield f"{indent}note(clock() - begun)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("layers", 12), ("width", 16), ("tokens", 8), ("rounds", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--loops", default=",".join(LOOPS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("guards", "arguments", "generated", "views", "backward", "rest")
    print(f"| loop | tensors, operations, views | eager ms | planned ms | ratio | {' | '.join(columns)} |")
    print("|---" * (5 + len(columns)) + "|")
    for loop in options.loops.split(","):
        training = Training(loop, options.layers, options.width, options.tokens)
        for run in (training.eager, training.planned):
            seconds(run, training.clear, 5)  # a warm-up
        eager: list[float] = []
        planned: list[float] = []
        for _ in range(options.rounds):
            eager += seconds(training.eager, training.clear, 4)
            planned += seconds(training.planned, training.clear, 4)
        split = parts(training, 4 * options.rounds)
        number, split["views"] = views(training, 2 * options.rounds)
        program = training.step.plans[0].program
        count = f"{len(program.parameters)}, {len(program.operations)}, {number}"
        figures = " | ".join(f"{1000 * split.get(name, 0.0):.2f}" for name in columns)
        ratio = median(planned) / median(eager)
        times = f"{1000 * median(eager):.2f} | {1000 * median(planned):.2f}"
        print(f"| {loop} | {count} | {times} | {ratio:.3f} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
