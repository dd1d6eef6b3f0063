"""Training while the machine is not as planned: faults by injection, on the simulated device.

Protocol: five models (faulting/models.py) are trained for 200 iterations with AdamW in the plan, at 75 % of
the baseline's peak (85 % if others use the device), with offloading, recomputation, updates on the CPU, and
`rollback_on_error=True`. A kind of fault (faulting/kinds.py) is there from the beginning, or from a random
iteration between 30 and 60 on. Then: every loss, weight, buffer and state is eager PyTorch's, bit by bit; the
device's own maximum is within the budget; the training says what it must; and the plan is at most 10 % slower
than a fresh one for the machine as it is then, as the simulator times both. Times are counted, not measured:
a busy machine changes how far a solver comes in its second, and nothing else. Each row is printed; the exit
code is 1 if there is a wrong one.

With `--ranks 2` (faulting/on_ranks.py, rank_kinds.py) two processes train together over gloo, on the CPU, in
DistributedDataParallel at 75 % and by FSDP2 at 70 %, and one of them is not as planned. The bits are those of
DistributedDataParallel and FSDP2; memory is counted on each rank for 24 iterations, the fault's among them;
and no rank may wait for another: a trial that does not end in time is wrong.

    python benchmarks/faults.py [--seed N] [--iterations N] [--only KIND] [--models MODEL,MODEL] [--ranks 2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from faulting.kinds import KINDS
from faulting.models import MODELS
from faulting.on_ranks import BUDGETS, run_on_ranks
from faulting.rank_kinds import RANK_KINDS
from faulting.run import WRONG, Row, run


def trials(
    ranks: int, seed: int, iterations: int, folder: str
) -> Iterator[tuple[str, str, Callable[[], Row]]]:
    """Yield the name, the model and the trial of each row."""
    if ranks == 1:
        for kind, model in product(KINDS.values(), MODELS):
            yield kind.name, model, partial(run, kind, model, seed, iterations)
        return
    for kind, way, model in product(RANK_KINDS.values(), BUDGETS, MODELS):
        trial = partial(run_on_ranks, kind, way, model, seed, iterations, folder)
        yield f"{kind.name}, {way}", model, trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--only", default="", help="a part of the kinds' names")
    parser.add_argument("--models", default="", help="parts of the models' names, with commas")
    parser.add_argument(
        "--ranks", type=int, choices=(1, 2), default=1, help="2: on two gloo ranks, on the CPU"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    models = [name for name in MODELS if any(part in name for part in given.models.split(","))]
    wrong = 0
    with TemporaryDirectory() as folder:
        for name, model, trial in trials(given.ranks, given.seed, given.iterations, folder):
            if given.only not in name or model not in models:
                continue
            try:
                row = trial()
            except Exception as error:
                row = Row(name, model, f"{WRONG}{type(error).__name__}: {' '.join(str(error).split())}")
            wrong += row.outcome.startswith(WRONG)
            share = "" if row.share is None else f"{row.share:.2f}"
            print(" | ".join((row.kind, row.model, row.outcome, share, row.line)), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
