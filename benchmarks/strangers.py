"""Run small models that nobody tuned memplan for (strangers_*.py) on the whole path: does it work on what
people have?

    nice python benchmarks/strangers.py --rows rows.jsonl [--write FILE.md] [family | model ...]

Each model has a process of its own, which trains it on ten different batches of equal shapes by eager PyTorch
and by `optimize` with its default options, with AdamW in the loop and in the plan
(strangers_training.py). *works*: all batches train,
and losses, gradients, weights, optimizer states, buffers and random numbers are bitwise eager's, in a peak
that is at most the predicted. Other outcomes: *refused* by a line of `optimize`; *refused later*, at another
batch than the first; *wrong*; *crash*, by an exception that is no refusal or by a signal. Rows that are in
the file already are kept: a run that was stopped goes on. Families whose name ends with *drawn* are those of
strangers_drawn.py, which says which packages they need.
"""

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
import time
from itertools import zip_longest
from pathlib import Path


def strangers(*, drawn=True):
    """Per family, the functions that make the models, by name. drawn: those of strangers_drawn.txt too."""
    from strangers_diffusers import DIFFUSERS
    from strangers_drawn import of_drawn
    from strangers_graphs import GRAPHS
    from strangers_timm import TIMM
    from strangers_torch import TORCH
    from strangers_torchvision import TORCHVISION
    from strangers_transformers_mixed import MIXED
    from strangers_transformers_text import TEXT
    from strangers_transformers_vision import VISION

    return {
        "PyTorch": TORCH,
        "PyTorch Geometric": GRAPHS,
        "transformers": {**TEXT, **VISION, **MIXED},
        "diffusers": DIFFUSERS,
        "timm": TIMM,
        "torchvision": TORCHVISION,
        **(of_drawn() if drawn else {}),
    }


def row_of(make, options, pipe):
    """The message of a child process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    from strangers_training import BUDGETS, LOOPS, outcome

    loops, budgets = (("in the plan",), BUDGETS[1:]) if options.once else (LOOPS, BUDGETS)
    pipe.send(outcome(make, options.time_limit, loops, budgets))


def run(make, options):
    """The row of a model, made in a process of its own, which shares what is imported here."""
    from strangers_training import CRASH, SLOW, died

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=row_of, args=(make, options, there))
    start = time.perf_counter()
    child.start()
    there.close()
    try:
        row = here.recv() if here.poll(options.timeout) else {"ended": {"outcome": SLOW, "why": ""}}
    except EOFError:
        child.join()
        row = {"ended": {"outcome": CRASH, "why": died(child.exitcode)}}
    child.kill()
    child.join()
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def summary(row):
    """One line."""
    loops = (f"{loop}: {found['outcome']} {found.get('why', '')}" for loop, found in loops_of(row).items())
    return "; ".join(loops) or row["no model"]


def loops_of(row):
    """By loop, what it came to."""
    return {name: found for name, found in row.items() if isinstance(found, dict) and "outcome" in found}


def warm():
    """One small model on the whole path: what it compiles, all children have."""
    import torch

    torch.set_num_threads(1)
    from memplan.model.iteration import Iteration
    from strangers_training import outcome

    def make():
        layers = [torch.nn.Linear(32, 32), torch.nn.GELU()]
        return Iteration(
            torch.nn.Sequential(*layers * 6), (torch.randn(64, 32),), lambda x: x.square().mean()
        )

    found = outcome(make, 0.2)
    print(f"a small model: {summary(found)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("only", nargs="*", help="families or models, by default all")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines, to add to")
    parser.add_argument("--write", type=Path, help="the page to write from all rows")
    parser.add_argument("--machine", default="unnamed machine", help="as the page names it")
    parser.add_argument("--state", default="unnamed state", help="of the code, as the page names it")
    parser.add_argument("--time-limit", type=float, help="seconds to solve in, by default optimize's own")
    parser.add_argument("--once", action="store_true", help="AdamW in the plan alone, 100 % of the memory")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for a model")
    options = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # of this run alone
    warm()
    models = [*in_turn(strangers())]
    gc.collect()
    gc.freeze()  # else each child's collections copy the memory of all that is imported here
    rows = [json.loads(line) for line in read(options.rows)]
    done = {(row["family"], row["model"]) for row in rows}
    for family, name, make in models:
        if (family, name) in done or (options.only and not {family, name} & {*options.only}):
            continue
        row = {"family": family, "model": name, "state": options.state, **run(make, options)}
        rows.append(row)
        print(f"{family}: {name} ({row['seconds']} s): {summary(row)}", flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if options.write:
        from strangers_page import page

        options.write.write_text(page(rows, options.machine))


def in_turn(families):
    """One of each family after the other: a run that is stopped has some of all."""
    for each in zip_longest(
        *([(family, *one) for one in models.items()] for family, models in families.items())
    ):
        yield from (one for one in each if one is not None)


def read(path):
    return path.read_text().splitlines() if path and path.exists() else []


if __name__ == "__main__":
    main()
