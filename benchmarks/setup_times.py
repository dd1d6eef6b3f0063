"""How long `memplan.optimize` takes before the first iteration: with an empty cache, and started again.

Protocol. GPT-2 small (12 layers, width 768, dropout), batch 2 of TOKENS, forward and backward. Each start
is a process of its own; all share one cache folder, which is empty before the first one, so that this one
compiles the search too. By phase: seconds by the clock, and in brackets seconds of processor time, children's
included, which a busy machine disturbs less. Imports and the making of the model come before.

    python benchmarks/setup_times.py [--budget 80%] [--solver auto] [--tokens 256] [--threads 2] [--starts 2]
        [--no-compare]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


def start(budget: str, solver: str, tokens: int, threads: int, compare: bool | None) -> None:
    """One start, told as JSON."""
    import memplan
    import torch
    from gpt2 import build
    from memplan.training.progress import ProgressEvent

    torch.set_num_threads(threads)
    model, batch = build(layers=12, width=768, heads=12, vocabulary=50257, batch=2, length=tokens)
    phase, times, clock = "", dict[str, list[float]](), [perf_counter(), _processor()]

    def reported(at: Any) -> None:
        nonlocal phase, clock
        now = [perf_counter(), _processor()]
        spent = [after - before for after, before in zip(now, clock, strict=True)]
        times[phase] = [a + b for a, b in zip(times.get(phase, [0.0, 0.0]), spent, strict=True)]
        phase, clock = at.phase, now

    memplan.optimize(model, batch, budget=budget, solver=solver, verify=compare, progress=reported)
    reported(ProgressEvent(""))
    print(json.dumps(times))


def _processor() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--budget", default="80%")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--no-compare", dest="compare", action="store_const", const=False)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        start(options.budget, options.solver, options.tokens, options.threads, options.compare)
        return
    print("| start | all s | by phase, s by the clock (of processor time) | load |\n|---|---|---|---|")
    with TemporaryDirectory() as cache:
        for number in range(1, options.starts + 1):
            load = os.getloadavg()[0]
            command = [sys.executable, __file__, "--one", *sys.argv[1:]]
            done = subprocess.run(
                command,
                env={**os.environ, "XDG_CACHE_HOME": cache},
                stdout=subprocess.PIPE,
                check=True,
            )
            phases = {
                name or "rest": spent for name, spent in json.loads(done.stdout.splitlines()[-1]).items()
            }
            cells = ", ".join(f"{name} {clock:.1f} ({cpu:.1f})" for name, (clock, cpu) in phases.items())
            clock, cpu = (sum(spent[place] for spent in phases.values()) for place in (0, 1))
            print(f"| {number} | {clock:.1f} ({cpu:.1f}) | {cells} | {load:.1f} |", flush=True)


if __name__ == "__main__":
    main()
