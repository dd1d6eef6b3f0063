"""Lower bounds against exhaustive optima, on random graphs of up to six operations and every magnitude.

Protocol. Each graph (wide_graphs.py) has bytes from 1 to 2^50 and times over 12 orders of magnitude,
and one budget, most often exactly what some of its tensors take. All bounds that a solution without transfers
carries, for any order and the traced one, with backward operations once or not, are compared with the optimum
of their class, by exhaustive search, without any tolerance; proofs that there is no schedule likewise, and
the least memory. Graphs follow from the seed alone. Exit code 1 where a bound is false.

    python benchmarks/bounds_against_optima.py [--graphs 100000] [--seed 0] [--every 5000]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from wide_graphs import exact_budget, false_bounds, wide_graph


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, default=5_000, help="graphs from one line of progress to the next"
    )
    options = parser.parse_args()
    begin, false = monotonic(), 0
    for number in range(options.graphs):
        random = Random(f"{options.seed}.{number}")
        graph = wide_graph(random)
        faults = false_bounds(graph, exact_budget(random, graph))
        false += bool(faults)
        for fault in faults:
            print(f"graph {number}: {fault}", flush=True)
        if (number + 1) % options.every == 0:
            print(
                f"{number + 1:,} graphs, {false} with a false bound, {monotonic() - begin:,.0f} s", flush=True
            )
    print(f"{options.graphs:,} graphs of seed {options.seed}: {false} with a false bound")
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main())
