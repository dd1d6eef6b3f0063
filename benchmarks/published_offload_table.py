"""The page of published_offload.py: estimates by a technique and what was published of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

from memplan.graphs.machines.gpus import find_gpu
from published_table import UNITS

Row = dict[str, Any]
Result = Mapping[str, str]

MEMORY_FACTOR, TIME_FACTOR, DIFFERENT = 1.1, 1.4, 1.1
"""Factors within which memory and times are asked, and from which two techniques count as different."""


ROUNDS = (1, 2, 3)
HALVES = {"judge": ROUNDS, **{f"judge, round {one}": (one,) for one in ROUNDS}, "fit": ROUNDS}
"""Headings of the page's figures -> the rounds of judging that count."""


class Compared(NamedTuple):
    """A row with published and estimated bytes and seconds; None: nothing was published."""

    row: Row
    memory: tuple[float, float] | None
    time: tuple[float, float] | None

    @property
    def mark(self) -> str:
        return "approximate" if self.row["approximate"] else self.row["half"]


def compare(row: Row, result: Result) -> Compared:
    """Compare the estimates of a row with what was published."""
    memory, size = row["memory"], None
    if memory and "peak" in memory:
        of = {"allocated": "expected", "beyond-weights": "expected"}.get(memory["of"], "reserved")
        estimated = float(result[of]) - (float(result["weights"]) if memory["of"] == "beyond-weights" else 0)
        size = (memory["peak"] * UNITS[memory["unit"]], estimated)
    return Compared(row, size, row["time"] and (float(row["time"]), float(result["seconds"])))


def anew_id(row: Row) -> str:
    """Return the id of a judging row's estimate with the settings of today."""
    return f"{row['id']}:anew"


def render(rows: list[Row], results: Mapping[str, Result]) -> str:
    """Return the page."""
    done = [
        compare(row, results[row["id"]])
        for row in rows
        if row["id"] in results and not results[row["id"]]["error"]
    ]
    unable = [row for row in rows if row["expressible"] is not True]
    failed = [
        f"- `{row['id']}`: {results[row['id']]['error']}"
        for row in rows
        if row["id"] in results and results[row["id"]]["error"]
    ]
    waiting = [one for one in done if one.memory is None and one.time is None]
    sources = {row["source"]["address"]: row["source"]["title"] for row in rows}
    parts = [
        "# Published measurements with offloading",
        f"{len(rows)} rows of {len(sources)} sources, of kind `offload` in "
        f"[published.yaml](../published.yaml); {len(done)} were estimated, {len(waiting)} of them wait for "
        "their figures. Written by `python benchmarks/published_offload.py`. Each row is the author's "
        "technique, by a solver of memplan with fixed settings, at the least budget with which its schedule "
        "is valid. Some programs offload nothing: the others of a series, optimizers, adapters. Rows of "
        "`judge` were estimated before their figures were read: a hash of settings, version and estimate "
        "stands in the file since then. No value was fitted to any row. Ratios are estimated / published. "
        "Round 2 has the rows that were judged after measured rates of products and fused kernels came in, "
        "round 3 those of sources that no row had before. `approximate`: what the author ran is not known "
        "whole; such rows are in no statistic but the order.",
        "## How good",
        "\n".join(_summary(done)),
        "## Judging rows, estimated anew",
        "With what memplan or the row lacked when it was judged. The figures were known by then: these "
        "estimates are in no statistic.",
        "\n".join(_anew(rows, results)),
        "## Order of techniques",
        "\n".join(_orders(done)),
        "## Every row",
        "Memory in GiB, times in seconds.",
        "\n".join(_table(done)),
        "## What the programs differ in, and why estimates are off",
        "\n".join(_causes(done)),
        "## Not estimated",
        "\n".join([*(f"- `{row['id']}`: {row['expressible']}" for row in unable), *failed]) or "None.",
        "## Which half a row is in",
        "\n".join(_halves(rows)),
        "## Sources",
        "\n".join(f"- {title}: {address}" for address, title in sources.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(done: list[Compared]) -> Iterator[str]:
    yield "| | rows | median | least | most | within |"
    yield "|---|---|---|---|---|---|"
    for what, factor in (("memory", MEMORY_FACTOR), ("time", TIME_FACTOR)):
        for half, rounds in HALVES.items():
            figures = [
                getattr(one, what) for one in done if half.startswith(one.mark) and one.row["round"] in rounds
            ]
            ratios = sorted(figure[1] / figure[0] for figure in figures if figure)
            if ratios:
                near = sum(1 / factor <= ratio <= factor for ratio in ratios)
                shown = " | ".join(f"{ratio:.2f}" for ratio in (median(ratios), ratios[0], ratios[-1]))
                yield f"| {what}, {half} | {len(ratios)} | {shown} | {near} of {len(ratios)} ({factor}) |"


def _anew(rows: list[Row], results: Mapping[str, Result]) -> Iterator[str]:
    yield "| row | with | memory, as judged | now | time, as judged | now |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if row["anew"] is not None and anew_id(row) in results:
            both = [compare(row, results[name]) for name in (row["id"], anew_id(row))]
            cells = [_cells(getattr(one, what), 1)[2] for what in ("memory", "time") for one in both]
            settings = ", ".join(f"{key}={value}" for key, value in row["anew"].items()) or "-"
            yield f"| `{row['id']}` | {settings} | {' | '.join(cells)} |"


def pairs(done: Iterable[Compared]) -> Iterator[tuple[str, Compared, Compared, bool]]:
    """Yield what differs, the two rows of a series, and whether the estimates have the published order."""
    for one, other in combinations([one for one in done if one.row["pairs"]], 2):
        if one.row["pairs"] != other.row["pairs"]:
            continue
        for what in ("time", "memory"):
            first, second = getattr(one, what), getattr(other, what)
            if first and second and max(first[0] / second[0], second[0] / first[0]) > DIFFERENT:
                yield what, one, other, (first[0] < second[0]) == (first[1] < second[1])


def _orders(done: list[Compared]) -> Iterator[str]:
    found = list(pairs(done))
    right = sum(one[-1] for one in found)
    later = [
        [one for one in found if one[1].row["round"] == count == one[2].row["round"]] for count in ROUNDS[1:]
    ]
    yield (
        f"Pairs of one series that differ by more than 10 %: {right} of {len(found)} are right, "
        + ", ".join(
            f"of round {count} {sum(one[-1] for one in pairs)} of {len(pairs)}"
            for count, pairs in zip(ROUNDS[1:], later, strict=True)
        )
        + "."
    )
    yield ""
    yield "| of | published less | published more | published | estimated | |"
    yield "|---|---|---|---|---|---|"
    for what, one, other, is_right in found:
        less, more = sorted((one, other), key=lambda each: getattr(each, what)[0])
        shares = (getattr(more, what)[at] / getattr(less, what)[at] for at in (0, 1))
        shown = " | ".join(f"{share:.2f}" for share in shares)
        names = f"`{less.row['id']}` | `{more.row['id']}`"
        yield f"| {what} | {names} | {shown} | {'right' if is_right else 'wrong'} |"


def _table(done: list[Compared]) -> Iterator[str]:
    yield "| row | half | card | technique | memory | estimated | ratio | time | estimated | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in done:
        technique = one.row["technique"]
        words = " ".join([technique["solver"], *(f"{k}={v}" for k, v in technique["settings"].items())])
        cells = [*_cells(one.memory, 2**30), *_cells(one.time, 1)]
        first = (f"`{one.row['id']}`", one.mark, find_gpu(one.row["card"]).name, words)
        yield f"| {' | '.join((*first, *cells))} |"


def _cells(figure: tuple[float, float] | None, unit: float) -> list[str]:
    if figure is None:
        return ["-"] * 3
    return [*(f"{value / unit:.2f}" for value in figure), f"{figure[1] / figure[0]:.2f}"]


def _causes(done: list[Compared]) -> Iterator[str]:
    yield "| row | differs | cause |"
    yield "|---|---|---|"
    for one in done:
        differs = one.row["differs"] or one.row["approximate"]
        if differs or one.row["cause"]:
            yield f"| `{one.row['id']}` | {differs or '-'} | {one.row['cause'] or '-'} |"


def _halves(rows: list[Row]) -> Iterator[str]:
    for half in ("judge", "fit"):
        for because in dict.fromkeys(row["because"] for row in rows if row["half"] == half):
            names = ", ".join(
                f"`{row['id']}`" for row in rows if (row["half"], row["because"]) == (half, because)
            )
            yield f"- {half}, as {because}: {names}"
