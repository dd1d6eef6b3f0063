"""The verifier of certificates against the simulator, exhaustive optima, and itself with a number changed.

Protocol. Four parts, each from seeds alone; exit code 1 where one finds a difference.

1. Random schedules, valid or not, on machines of two to five memories (strategies.py): the verifier's replay
   accepts those that the simulator accepts, with the same bytes, and the same time to 10^-9.
2. Flows at the best prices, and at random ones, of random graphs of up to seven operations: none proves more
   than the optimum of an exhaustive search over all orders and recomputations.
3. Ten of each of these with one number changed: refused, or as true.
4. Certificates of solutions of small graphs and of training graphs with one number changed, anywhere in them:
   refused, or what is proven is at most the optimum (small ones) or the time of the schedule (the others).

    python benchmarks/certificates.py [--schedules 10000] [--graphs 1000] [--changes 10000]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from random import Random
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from certified import REFUSALS, certified, changed, false_claims, proven, replayed
from exact import optimal_time
from memplan.planner.baseline import baseline
from training_graphs import training
from wide_graphs import exact_budget, wide_graph


def schedules(count: int, faults: list[str]) -> Counter[str]:
    faults += [f"schedule {seed}: {fault}" for seed in range(count) if (fault := replayed(seed))]
    return Counter(schedules=count)


def flows(count: int, faults: list[str]) -> Counter[str]:
    found, number = Counter[str](), 0
    while found["flows"] < count:
        random, number = Random(f"proof {number}"), number + 1
        if (case := proven(random)) is None:
            continue
        found["flows"] += 1
        if fault := case.fault():
            faults.append(f"proof {number - 1}: {fault}")
        for _change in range(10):
            try:
                if fault := case._replace(bound=changed(case.bound, random)).fault():
                    faults.append(f"proof {number - 1}, changed: {fault}")
                found["changed flows accepted"] += 1
            except REFUSALS:
                found["changed flows refused"] += 1
    return found


def certificates(count: int, faults: list[str]) -> Counter[str]:
    found, cases, number = Counter[str](), [], 0
    while len(cases) < 40:
        random, number = Random(f"certificate {number}"), number + 1
        small = number % 4
        graph = wide_graph(random, 7) if small else training(random.randint(3, 6), number, skip=0.2)
        budget = int(
            exact_budget(random, graph) if small else baseline(graph).peak * random.uniform(0.5, 0.9)
        )
        if (case := certified(graph, budget)) is not None:
            time = case.schedule["predicted"]["time"]
            cases.append((case, optimal_time(graph, budget) if small else time))
            found["with a flow"] += any(bound["proof"] for bound in case.certificate["bounds"])
    for number in range(count):
        random = Random(f"change {number}")
        case, optimum = cases[number % len(cases)]
        try:
            other = case._replace(certificate=changed(case.certificate, random))
            faults += [f"change {number}: {fault}" for fault in false_claims(other, optimum)]
            found["changed certificates accepted"] += 1
        except REFUSALS:
            found["changed certificates refused"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--graphs", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=10_000)
    options = parser.parse_args()
    faults: list[str] = []
    for part, count in (
        (schedules, options.schedules),
        (flows, options.graphs),
        (certificates, options.changes),
    ):
        begun = process_time()
        counts = ", ".join(f"{number:,} {what}" for what, number in part(count, faults).items())
        print(f"{counts}: {process_time() - begun:.0f} s of processor time", flush=True)
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
