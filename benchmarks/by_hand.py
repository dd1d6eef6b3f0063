"""`auto` compared with offloading that people set by hand: models, cards, lengths.

Protocol: graphs of `memplan.instances`, computed from the model's configuration and the card's data sheet, in
bfloat16 with Adam; 4 sequences. The budget is the card's memory, or 60 % of the baseline's peak if that is
less, but at least 1.25 times the minimum memory. Per cell the seconds of an iteration by each solver of
`BY_HAND`, None if it has no schedule, and of `auto` with `--seconds`. All times are the simulator's. One line
of JSON a cell, written at once; cells that are in the file are skipped.

    python benchmarks/by_hand.py -o rows.jsonl
    python benchmarks/by_hand.py --table rows.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

from memplan.instances.families import decoder
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry.run import solve

BY_HAND = (
    "store-all",
    "layer-checkpoint",
    "checkpoint-offload",
    "activation-offload",
    "optimizer-offload",
    "paged-optimizer",
    "block-swap",
    "zero-offload",
    "zero-infinity",
    "l2l",
)

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "phi-2", "llama-2-7b", "lohan-6b", "lohan-13b")
CARDS = ("rtx3060", "rtx4090", "a100-40gb")
LENGTHS = (256, 1024)
MORE = (("gpt2-xl", "h100", 256), ("llama-2-7b", "h100", 1024))

BATCH = 4
SHARE, LEAST = 0.6, 1.25
"""Limits of the budget: a share of the baseline's peak, a multiple of the minimum memory."""

SAME = 1 + 1e-9

Row = dict[str, Any]


def cells() -> Iterator[tuple[str, str, int]]:
    yield from product(MODELS, CARDS, LENGTHS)
    yield from MORE


def problem_of(model: str, card: str, length: int, batch: int = BATCH) -> Problem:
    graph = decoder(model, card, batch, length)
    assert graph.machine is not None
    least = int(LEAST * minimum_memory(graph, graph.machine))
    most = int(SHARE * baseline(graph).peak)
    return Problem(graph, max(least, min(most, graph.machine.device_capacity or most)))


def measured(problem: Problem, seconds: float) -> dict[str, float | None]:
    """Seconds of an iteration by each solver; `auto` has a time limit."""
    found: dict[str, float | None] = {}
    for name in (*BY_HAND, "auto"):
        found[name] = None
        with suppress(InfeasibleError, NotAcceptedError):
            limit = seconds if name == "auto" else None
            found[name] = solve(name, problem, limit, bound_seconds=0).figures.time
    return found


def best_by_hand(times: dict[str, float | None]) -> tuple[float, str] | None:
    """The fastest of what people set by hand; None if nothing fits."""
    return min(((times[name], name) for name in BY_HAND if times[name] is not None), default=None)  # pyright: ignore


def table(rows: list[Row]) -> Iterator[str]:
    """A line of Markdown for each model and card, then how often which setting is the best by hand."""
    yield "| model | card | budgets | best by hand | auto saves |"
    yield "|---|---|---|---|---|"
    slower, nothing, ratios = 0, 0, list[float]()
    for model, card in dict.fromkeys((row["model"], row["card"]) for row in rows):
        own = [row for row in rows if (row["model"], row["card"]) == (model, card)]
        best = [best_by_hand(row["times"]) for row in own]
        saved: list[str] = []
        for row, hand in zip(own, best, strict=True):
            auto = row["times"]["auto"]
            if hand is None:
                nothing += 1
                saved.append("only auto fits" if auto else "none fits")
            elif auto is None:
                slower += 1
                saved.append("auto has none")
            else:
                slower += auto > hand[0] * SAME
                ratios.append(auto / hand[0])
                saved.append(f"{1 - auto / hand[0]:.1%}")
        names = ", ".join(hand[1] if hand else "none" for hand in best)
        sizes = ", ".join(f"{row['budget'] / 2**30:.1f}" for row in own)
        yield f"| {model} | {card} | {sizes} GiB | {names} | {', '.join(saved)} |"
    mean = exp(sum(map(log, ratios)) / len(ratios)) if ratios else 1.0
    yield ""
    counted = f"{len(rows)} cells: auto slower in {slower}, nothing by hand in {nothing}"
    yield f"{counted}, {mean:.3f} of the time in the mean"


def run(
    parser: argparse.ArgumentParser,
    wanted: Iterable[Row],
    measure: Callable[[Row, argparse.Namespace], Row],
    table: Callable[[list[Row]], Iterable[str]],
) -> None:
    """Print the table of a file, or add the wanted rows that a file lacks to it, one line of JSON each.

    wanted: the first columns of each row. measure: returns its others, by the command's options.
    """
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--table", type=Path, help="print the table of a file")
    either.add_argument("-o", "--output", type=Path, help="file of rows, which is continued")
    words = parser.parse_args()
    path: Path = words.table or words.output
    known: list[Row] = [*map(json.loads, path.read_text().splitlines())] if path.exists() else []
    if words.table:
        print("\n".join(table(known)))
        return
    done = [row.items() for row in known]
    for row in wanted:
        if not any(row.items() <= each for each in done):
            with path.open("a") as file:
                print(json.dumps(row | measure(row, words)), file=file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of auto")

    def measure(row: Row, words: argparse.Namespace) -> Row:
        problem = problem_of(**row)
        return {"budget": problem.budget, "times": measured(problem, words.seconds)}

    rows = ({"model": model, "card": card, "length": length} for model, card, length in cells())
    run(parser, rows, measure, table)


if __name__ == "__main__":
    main()
