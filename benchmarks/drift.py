"""Training whose links, or whose computing, are not as fast as planned: what adapting gains.

Protocol: the emulated device of test_drift.py: each operation sleeps 5 ms, each copy as long
as its link needs. Six layers of 96×96, SGD, a link that moves a weight in 5 ms as planned. From the first
iteration on the link is half as fast, or the computing twice as slow or as fast. Medians of 15 iterations:
before anything has changed, with the transfers moved, and after the second solve. Behind each row all weights
are compared with plain PyTorch's, bit by bit.
Usage: python benchmarks/drift.py [solver [budget]]     (default joint 50%)
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from memplan.training.progress import ProgressEvent

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "training" / "plans")]
emulation: Any = import_module("test_drift")

DRIFTS = {"link ×½": (0.5, 1.0), "computing ×2": (1.0, 2.0), "computing ×½": (1.0, 0.5)}
TURNS = 15
MOST = 2000
"""Iterations until the solver in the background is through."""


def row(solver: str, budget: str, link: float, slower: float) -> list[str]:
    module, reported = emulation.model(), list[ProgressEvent]()
    with pytest.MonkeyPatch.context() as patch:
        emulated = emulation.Emulated(patch)
        step: Any = emulation.optimized(module, reported, solver=solver, budget=budget, time_limit=5)
        planned = step.plan.figures.time
        emulated.rate *= link
        emulated.slower = {one.name: slower for one in step.plans[0].program.operations}
        cells = [planned, emulation.taken(step, TURNS)]
        for phrase in ("not", "replanned:"):
            for _turn in range(MOST):
                if any(phrase in line or "timed anew" in line for line in emulation.lines(reported)):
                    break
                step(emulation.INPUTS)
            cells.append(emulation.taken(step, TURNS))
        emulation.assert_plain(step, module, step.report().plans[0].iterations)
    return [f"{1000 * cell:.0f} ms" for cell in cells] + [" | ".join(emulation.lines(reported))]


if __name__ == "__main__":
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setattr(emulation, "SECONDS", 0.005)
    patch.setattr(emulation, "RATE", emulation.WIDTH * emulation.WIDTH * 4 / 0.005)
    chosen = cast("tuple[str, str]", (*sys.argv[1:3], *("joint", "50%")[len(sys.argv) - 1 :]))
    for name, (link, slower) in DRIFTS.items():
        print(name, *row(*chosen, link, slower), sep="; ", flush=True)
