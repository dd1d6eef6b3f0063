"""Gaps of `joint` on language models whose states are on the host: eight models, three cards.

Protocol: graphs and budgets of by_hand.py, 1,024 tokens. `joint` with its defaults and a fixed number of
moves for each possible absence, so that a busy machine changes nothing. Per row: seconds of an iteration, and
each bound that holds for schedules with transfers. The gap is to the largest; it may hold only for schedules
in traced order. One line of JSON a row, with the processor seconds it took; rows that are in the file are
skipped.

    python benchmarks/gaps.py -o rows.jsonl [--moves N] [--seed N]
    python benchmarks/gaps.py --table rows.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from statistics import median
from time import process_time

from by_hand import CARDS, MODELS, Row, problem_of, run
from memplan.solvers.problem import InfeasibleError, NotAcceptedError
from memplan.solvers.registry.run import solve

LENGTH = 1024
BOUND_SECONDS = 60.0


def measured(row: Row, words: argparse.Namespace) -> Row:
    """Return the figures of a row; no times if nothing fits."""
    problem = problem_of(row["model"], row["card"], LENGTH)
    settings, began = {"moves": str(words.moves), "seed": str(words.seed)}, process_time()
    try:
        found = solve("joint", problem, settings=settings, bound_seconds=BOUND_SECONDS)
    except (InfeasibleError, NotAcceptedError) as error:
        return {"budget": problem.budget, "refused": str(error)}
    bounds = {bound.name: bound.seconds for bound in found.bounds if bound.transfers}
    took = process_time() - began
    return {"budget": problem.budget, "time": found.figures.time, "bounds": bounds, "took": took}


def gap(row: Row) -> float:
    """By what share the time is above the largest of the row's bounds."""
    return row["time"] / max(row["bounds"].values()) - 1


def table(rows: list[Row]) -> Iterator[str]:
    """A line of Markdown for each row, then the median and the largest gap."""
    yield "| model | card | budget | time | bound of all | largest bound | gap |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        start = f"| {row['model']} | {row['card']} | {row['budget'] / 2**30:.1f} GiB"
        if "refused" in row:
            yield f"{start} | none | | | |"
            continue
        bounds = row["bounds"].values()
        yield f"{start} | {row['time']:.4g} s | {min(bounds):.4g} s | {max(bounds):.4g} s | {gap(row):.1%} |"
    gaps = [gap(row) for row in rows if "refused" not in row]
    yield ""
    yield f"{len(gaps)} gaps: median {median(gaps):.1%}, largest {max(gaps):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=20, help="moves for each possible absence")
    parser.add_argument("--seed", type=int, default=0)
    run(parser, ({"model": model, "card": card} for model, card in product(MODELS, CARDS)), measured, table)


if __name__ == "__main__":
    main()
