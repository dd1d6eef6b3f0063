"""A thousand solves in one process: what they leave of memory, open files, threads and children.

Protocol: problem k is odd or random by turns (growth.py), solver k the k-th of all; 0.2 s each and
0.2 s for bounds. The first fifth warms up. Exit code 1 where the rest leaves more than 64 MiB, a file, a
thread or a child behind.

    python benchmarks/many_solves.py [solves [seconds]]     (default 1000 0.2)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from growth import held, solve_many
from memplan.solvers.registry import run as registry
from solver_cases import warm_up

MOST_BYTES = 64 * 2**20
PARTS = 5


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.2
    solvers = [entry.name for entry in registry.entries()]
    warm_up(solvers)
    start, solved, states = time.perf_counter(), 0, list[tuple[int, ...]]()
    for part in range(1, PARTS + 1):
        solved += solve_many(count // PARTS, solvers, seconds, first=(part - 1) * (count // PARTS))
        size, *others = held()
        states.append((max(0, size // MOST_BYTES), *others))
        print(
            f"{part * (count // PARTS):,} solves, {solved:,} schedules, {time.perf_counter() - start:.0f} s: "
            f"{size / 2**20:.0f} MiB, {others[0]} files, {others[1]} threads, {others[2]} children",
            flush=True,
        )
    return 1 if any(after > before for after, before in zip(states[-1], states[0], strict=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
