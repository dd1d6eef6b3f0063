"""Random schedules on the simulated device, late at random, and every kind of fault.

Protocol: `check` of hostile.py for seeds from `first` on, the nets in turn: results bitwise eager's
over three turns, then the peaks over three more: the device's as planned to the byte, host and disk not above
the plan. Then as many cases of `check_fault`, the kinds in turn: an error in the third iteration; the tensors
are those of an iteration's end, and the turns that follow give what eager gives. Each failure is printed with
its seed; the exit code is 1 if there was one.
Usage: python benchmarks/hostile_device.py [schedules [faults [first]]]     (default 1000 300 0)
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from hostile import FAULTS, check, check_fault, net_of


def main() -> int:
    given = [int(word) for word in sys.argv[1:]]
    schedules, faults, first = given + [1000, 300, 0][len(given) :]
    torch.set_num_threads(1)
    kinds = list(FAULTS)
    failed = 0
    for title, count, run in (
        ("schedules", schedules, lambda net, seed: check(*net, number=seed) or "as eager, as planned"),
        ("faults", faults, lambda net, seed: check_fault(*net, number=seed, kind=kinds[seed % len(kinds)])),
    ):
        start, found = time.perf_counter(), Counter[str]()
        for seed in range(first, first + count):
            net = net_of(seed)
            outcome = _outcome(run, net, seed)
            if outcome.startswith("failed"):
                print(f"{title}: seed {seed} of {net[0]}: {outcome}", flush=True)
                failed += 1
            found[outcome if not outcome.startswith("failed") else "failed"] += 1
        print(f"{count:,} {title}, {time.perf_counter() - start:.0f} s", flush=True)
        for outcome, number in found.most_common():
            print(f"  {number:6,}  {outcome or 'nothing there that could fail so'}", flush=True)
    return 1 if failed else 0


def _outcome(run: Callable[..., str], net: tuple[Any, ...], seed: int) -> str:
    try:
        return run(net, seed)
    except BaseException as error:
        return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


if __name__ == "__main__":
    sys.exit(main())
