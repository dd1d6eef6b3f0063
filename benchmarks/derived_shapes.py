"""Processor seconds of plans for new shapes that are derived from the first one.

Protocol. Each run is a process with empty caches. GPT-2 small (12 layers, width 768, batch 2) is planned for
256 tokens with everything kept, without a search; then batches of other lengths come. Per length: the derived
plan and its parts, the first call of the step (plan and iteration) and the second (iteration). `trace` is the
trace of the new shape, `layouts` the runs of calls that are new, for forms, times and memory, `derive` the
graph and the simulation, `rest` mostly the code that is written. The first derived plan of a process has a
row of its own: it uses some of PyTorch's functions for the first time. Medians of all runs.

    python benchmarks/derived_shapes.py [--runs 3] [--updates]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

LENGTHS = (200, 128, 64, 32, 180, 100)
PARTS = ("trace", "layouts", "derive", "rest", "plan", "first call", "second call")


def run(*, updates: bool) -> None:
    """Plan, derive and train in this process. Prints the seconds of each length as JSON."""
    import memplan
    import torch
    from gpt2 import build
    from memplan.training.plans import front_end, plan

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    module, batch = build(layers=12, width=768, heads=12, vocabulary=50257, batch=2, length=256)
    spent: dict[str, float] = {}

    def timed(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def measured(*arguments: Any, **keywords: Any) -> Any:
            start = process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                spent[part] = spent.get(part, 0.0) + process_time() - start

        setattr(owner, name, measured)

    timed(plan, "trace_real_layouts", "layouts")
    timed(plan.Planner, "_derived", "derive")
    timed(front_end, "trace", "trace")
    timed(plan.Planner, "__call__", "plan")
    optimizer = torch.optim.AdamW(module.parameters()) if updates else None
    step = memplan.optimize(
        module, batch, budget="100GB", solver="store-all", cache=False, verify=False, optimizer=optimizer
    )
    step(**batch).backward() if optimizer is None else step(**batch)
    rows: list[dict[str, float]] = []
    for length in LENGTHS:
        given = {name: tensor[:, :length].contiguous() for name, tensor in batch.items()}
        spent.clear()
        for call in ("first call", "second call"):
            start = process_time()
            loss = step(**given)
            if optimizer is None:
                loss.backward()
            spent[call] = process_time() - start
        spent["rest"] = spent["plan"] - sum(spent[part] for part in ("trace", "layouts", "derive"))
        rows.append({part: spent[part] for part in PARTS})
    print(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--updates", action="store_true", help="AdamW's updates are in the plan")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run(updates=options.updates)
        return
    runs: list[list[dict[str, float]]] = []
    load = os.getloadavg()[0]
    for _run in range(options.runs):
        with TemporaryDirectory() as folder:
            environment = {"XDG_CACHE_HOME": folder, "NUMBA_CACHE_DIR": f"{folder}/compiled"}
            done = subprocess.run(
                [sys.executable, __file__, "--one", *sys.argv[1:]],
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                check=True,
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"load {load:.1f} to {os.getloadavg()[0]:.1f}; seconds of processor time")
    print(f"| shape | {' | '.join(PARTS)} | plan, least to most |\n|{'---|' * (len(PARTS) + 2)}")
    first, later = [rows[0] for rows in runs], [row for rows in runs for row in rows[1:]]
    for name, rows in ((f"the first, {LENGTHS[0]} tokens", first), ("later ones", later)):
        cells = " | ".join(f"{median(row[part] for row in rows):.2f}" for part in PARTS)
        plans = [row["plan"] for row in rows]
        print(f"| {name} | {cells} | {min(plans):.2f} to {max(plans):.2f} |")


if __name__ == "__main__":
    main()
