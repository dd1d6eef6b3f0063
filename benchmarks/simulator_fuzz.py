"""The simulator against the tests' second replay, on as many random cases as there is patience for.

Protocol: `random_case(Random(seed))` of tests/strategies.py for each seed from `first` on, with larger
graphs than in the test run. Every disagreement is printed with its seed; the exit code is 1 if there was one.
Usage: python benchmarks/simulator_fuzz.py [cases [first [operations]]]     (default 20000 0 12)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from strategies import random_case
from test_simulator import disagreement


def main() -> int:
    given = [int(word) for word in sys.argv[1:]]
    cases, first, operations = given + [20_000, 0, 12][len(given) :]
    start = time.perf_counter()
    found = 0
    for seed in range(first, first + cases):
        difference = disagreement(random_case(Random(seed), operations))
        if difference is not None:
            found += 1
            print(f"seed {seed}\n{difference}", flush=True)
    print(f"{cases:,} cases, {found} disagreements, {time.perf_counter() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
