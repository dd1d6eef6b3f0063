"""Training scripts with memplan and without: lines changed, seconds to start, and whether all bits agree.

    python benchmarks/training_scripts.py [NAME …]

Protocol. Each script of tests/training_scripts runs without memplan, with an empty plan cache, and with the
plans of that run; the budget is the first of `BUDGETS` with a plan. *start*: processor seconds of
the first planned run above the plain one's, and of the second; *equal*: all losses, and all tensors of the
model's final state_dict, bit by bit.
"""

import contextlib
import io
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from memplan.graphs.errors import MemplanError
from memplan.solvers.problem import InfeasibleError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "training"))

from test_training_scripts import FOLDER, NEEDS, changed_lines, trained, unplanned

BUDGETS = ("80%", "90%", "100%")


def run(text, name, budget=""):
    """Return losses and weights of a run, and its processor seconds."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        losses, weights = trained(text, name, Path(folder), budget)
    return losses, weights, time.process_time() - begun


def row(name):
    text = (FOLDER / f"{name}.py").read_text()
    losses, weights, seconds = run(unplanned(text), name)
    for budget in BUDGETS:
        try:
            first_losses, _weights, first = run(text, name, budget)
            own, own_weights, second = run(text, name, budget)
        except InfeasibleError:
            continue
        pairs = zip(weights.values(), own_weights.values(), strict=True)
        equal = own == losses == first_losses and all(torch.equal(one, other) for one, other in pairs)
        cells = (name, changed_lines(text), budget, "yes" if equal else "NO")
        return *cells, f"{first - seconds:.0f}", f"{second - seconds:.0f}"
    return name, changed_lines(text), "-", "no plan", "-", "-"


def main(names):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| script | lines | budget | equal | start s | second start s |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for name in names or sorted(NEEDS):
        try:
            cells = row(name)
        except (MemplanError, ImportError) as error:
            cells = (name, f"{type(error).__name__}: {error}", *[""] * 4)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
