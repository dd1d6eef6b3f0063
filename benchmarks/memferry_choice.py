"""MemFerry's Algorithm 1 and the exact program against all choices, in the paper's model of an iteration.

    python benchmarks/memferry_choice.py [instances] [--most layers]

Random layers: forward from 0.1 to 1.5 s, fetch from 0.1 to 3, direct access up to 3 s longer than forward,
backward twice forward and up to 1.6 times that directly, up to 1 s between layers in half of the places.
Ratios to the optimum: of the forward part over 2^L choices, of both parts over 3^L.
"""

from __future__ import annotations

import argparse
from itertools import product
from random import Random
from statistics import mean

from memplan.solvers.offloading.memferry.estimate import PUBLISHED, Treatment, estimate, forward_estimate
from memplan.solvers.offloading.memferry.exact import best_choice
from memplan.solvers.offloading.memferry.greedy import Forward, greedy
from memplan.solvers.offloading.memferry.layers import Costs


def instance(seed: int, most: int) -> list[Costs]:
    random = Random(seed)

    def layer() -> Costs:
        forward, fetch = random.uniform(0.1, 1.5), random.uniform(0.1, 3.0)
        slower, backward = random.uniform(0.0, 3.0), random.uniform(1.0, 1.6)
        between, between_backward = (random.choice([0.0, random.random()]) for _pass in range(2))
        return Costs(
            fetch=fetch,
            forward=forward,
            direct_forward=forward + slower,
            backward=2 * forward,
            direct_backward=2 * forward * backward,
            between=between,
            between_backward=between_backward,
        )

    return [layer() for _ in range(random.randint(3, most))]


def ratios(costs: list[Costs]) -> tuple[float, float, float]:
    """Of Algorithm 1's forward part, of its choice with DFGB, of the exact program's."""
    forward = min(
        forward_estimate(costs, treatments)[0] for treatments in product(PUBLISHED[:2], repeat=len(costs))
    )
    whole = min(estimate(costs, treatments) for treatments in product(PUBLISHED, repeat=len(costs)))
    published: list[Treatment] = greedy(costs)
    exact = best_choice(costs, known=published)
    return (
        Forward(costs).total / forward,
        estimate(costs, published) / whole,
        exact.seconds / whole if exact else 1.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("instances", nargs="?", type=int, default=400)
    parser.add_argument("--most", type=int, default=7)
    arguments = parser.parse_args()
    rows = [ratios(instance(seed, arguments.most)) for seed in range(arguments.instances)]
    names = ("Algorithm 1, forward", "Algorithm 1 and greedy DFGB", "exact program")
    print("| choice | mean | worst | not optimal |\n|---|---|---|---|")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        worse = sum(ratio > 1 + 1e-9 for ratio in column)
        print(f"| {name} | {mean(column):.4f} | {max(column):.3f} | {worse} of {len(rows)} |")


if __name__ == "__main__":
    main()
