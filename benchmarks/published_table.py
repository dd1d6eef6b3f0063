"""The page of published.py: estimates and published figures, row by row and in medians."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from memplan.graphs.machines.gpus import find_gpu
from memplan.sizing.estimate_range import time_span
from published_work import Work, iteration_seconds

UNITS = {"MiB": 2**20, "GiB": 2**30, "MB": 10**6, "GB": 10**9}
MEMORY_FACTOR, TIME_FACTOR = 1.15, 1.4
"""The factors within which estimates are wanted."""

BEFORE = """Before the fit (70 % of the data sheet's FLOP/s and 80 % of its bandwidth for all, launches not \
counted, most rows with the CPU's operations):

| | rows | median | least | most | inside | within 1.15 (memory), 1.4 (time) | high / low |
|---|---|---|---|---|---|---|---|
| memory | 29 | 0.92 | 0.73 | 1.35 | 76% | 76% | 1.14 |
| memory, judge | 18 | 0.91 | 0.76 | 1.35 | 67% | 72% | 1.14 |
| time | 98 | 0.78 | 0.20 | 2.49 | 80% | 57% | 2.86 |
| time, judge | 53 | 0.81 | 0.20 | 2.49 | 85% | 64% | 2.86 |"""

Row = dict[str, Any]


class Figure(NamedTuple):
    """A published figure and its estimate: bytes, or seconds."""

    published: float
    low: float
    expected: float
    high: float

    @property
    def ratio(self) -> float:
        return self.expected / self.published

    @property
    def inside(self) -> bool:
        return self.low <= self.published <= self.high


class Judged(NamedTuple):
    """A row with its estimates. None: nothing was published. expected: bytes of the batch."""

    row: Row
    expected: float
    memory: Figure | None
    time: Figure | None


def half(row: Row) -> str:
    """Return whether the row is for fitting or for judging, or has weights in 4 bits: for judging these."""
    if row["quantize"]:
        return "4 bits"
    return "fit" if hashlib.sha256(row["id"].encode()).digest()[0] % 2 else "judge"


def published_bytes(row: Row) -> float | None:
    """Return the published peak: without CUDA's context, if that was in it."""
    memory = row["memory"]
    if not memory or "peak" not in memory:
        return None
    return (memory["peak"] - memory.get("context", 0)) * UNITS[memory["unit"]]


def judge(row: Row, result: Mapping[str, str], work: Work) -> Judged:
    """Compare the estimates of a row with what was published: nvidia-smi's bytes with those of segments."""
    low, expected, high = (float(result[name]) for name in ("low", "expected", "high"))
    reserved = float(result["reserved"] or expected)
    size, seconds = published_bytes(row), row["time"]
    segments = (row["memory"] or {}).get("of") in ("nvidia-smi", "reserved")
    return Judged(
        row,
        expected,
        None if size is None else Figure(size, low, reserved if segments else expected, high),
        None if seconds is None else Figure(seconds, *time_span(iteration_seconds(row, work))),
    )


def render(rows: list[Row], results: Mapping[str, Mapping[str, str]], work: Mapping[str, Work]) -> str:
    """Return the page.

    results, work: of rows by id. Times are by the efficiencies of now.
    """
    errors = {row["id"]: results[row["id"]]["error"] for row in rows if row["id"] in results}
    done = [judge(row, results[row["id"]], work[row["id"]]) for row in rows if errors.get(row["id"]) == ""]
    unable = [row for row in rows if row["expressible"] is not True]
    failed = [f"- `{name}`: {error}" for name, error in errors.items() if error]
    sources = {row["source"]["address"]: row["source"]["title"] for row in rows}
    parts = [
        "# Published measurements and estimates",
        f"{len(rows)} rows of {len(sources)} sources ([published.yaml](../published.yaml)); "
        f"{len(rows) - len(unable)} are programs that memplan can express, {len(done)} were estimated, "
        f"{_dates(results)}. Written by `python benchmarks/published.py`. Half of the rows, by a hash of the "
        "id, are for fitting the efficiencies of operations ([published_fit.py](../published_fit.py), "
        "[efficiencies.yaml](../../memplan/profiling/profile/efficiencies.yaml)); the others judge them. "
        "Nothing was fitted to memory, but for the 12 % that its high end has above the allocator's "
        "segments. Programs are PyTorch's ordinary loop, with the operations that 2.13 runs on that GPU, "
        "whatever version the authors had. An expected figure is compared with the bytes that tensors take "
        "where the author published those, and with the allocator's segments where he published those or "
        "nvidia-smi's.",
        "## How good",
        "Ratios are estimated / published. Inside: the published figure lies between low and high. A row "
        "whose source was not found (`recalled`), or whose program is not known to be this one "
        "(`approximate`), is in no statistic.",
        *_summaries([one for one in done if one.row["sourced"] and not one.row["approximate"]]),
        BEFORE,
        _reserved(done),
        "## Weights in 4 bits",
        _in_4_bits(done),
        "## Batches that ran, and that did not",
        "The largest batch of a series that ran bounds its memory from both sides: the estimate must fit at "
        "that batch, and not at the next.",
        _bounds(done),
        "## Every row",
        "Memory in GiB, times in ms.",
        _table(done),
        "## Not expressible",
        "\n".join(f"- `{row['id']}`: {row['expressible']}" for row in unable),
        "## Sources",
        "\n".join(f"- {title}: {address}" for address, title in sources.items()),
    ]
    return "\n\n".join([*filter(None, parts), *(["## Failed", "\n".join(failed)] if failed else [])]) + "\n"


def _dates(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return 'on 2026-11-26', or 'from … to …'."""
    dates = sorted({result["date"] for result in results.values() if result.get("date")})
    if not dates:
        return "never"
    return f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"


def compute_dtype(row: Row) -> str:
    """Return the dtype of most products."""
    if row["autocast"]:
        return f"{row['autocast']} autocast"
    return "tf32" if row["dtype"] == "float32" and row["tf32"] else row["dtype"]


def _card(row: Row) -> str:
    return find_gpu(row["card"]).name


def _language_model(row: Row) -> str | None:
    kind = row["model"].get("class", "")
    return f"{half(row)} {compute_dtype(row)}" if kind.endswith(("CausalLM", "LMHeadModel")) else None


GROUPS: dict[str, Callable[[Row], str | None]] = {
    "all": lambda _row: "",
    "half": half,
    "dtype": compute_dtype,
    "half and dtype": lambda row: f"{half(row)} {compute_dtype(row)}",
    "language models": _language_model,
    "card": _card,
    "source": lambda row: row["source"]["title"].split(",")[0],
}


def _summaries(done: list[Judged]) -> Iterator[str]:
    """Yield a table of memory and one of time, with a row for each group."""
    for what, factor in (("memory", MEMORY_FACTOR), ("time", TIME_FACTOR)):
        lines = [
            *_head(
                f"{what}, by", "rows", "median", "least", "most", "inside", f"within {factor}", "high / low"
            )
        ]
        for name, group in GROUPS.items():
            members: defaultdict[str, list[Figure]] = defaultdict(list)
            for one in done:
                figure = one.memory if what == "memory" else one.time
                if figure is not None and (label := group(one.row)) is not None:
                    members[label].append(figure)
            lines += [
                _line(f"{name} {label}", *_statistics(members[label], factor)) for label in sorted(members)
            ]
        yield "\n".join(lines)


def _statistics(figures: list[Figure], factor: float) -> Iterable[object]:
    ratios = sorted(figure.ratio for figure in figures)
    near = sum(1 / factor <= ratio <= factor for ratio in ratios) / len(ratios)
    inside = sum(figure.inside for figure in figures) / len(figures)
    width = median(figure.high / figure.low for figure in figures)
    shown = (f"{value:.2f}" for value in (median(ratios), ratios[0], ratios[-1]))
    return (len(ratios), *shown, f"{inside:.0%}", f"{near:.0%}", f"{width:.2f}")


def _reserved(done: list[Judged]) -> str:
    """Return a line on the segments of PyTorch's allocator, which are in the high end alone."""
    ratios = [
        one.memory.high / (reserved * UNITS[one.row["memory"]["unit"]])
        for one in done
        if one.memory is not None and (reserved := one.row["memory"].get("also", {}).get("reserved"))
    ]
    if not ratios:
        return ""
    return (
        f"Of {len(ratios)} rows the reserved memory was published too: high / reserved is "
        f"{median(ratios):.2f} in the median, from {min(ratios):.2f} to {max(ratios):.2f}."
    )


def _in_4_bits(done: list[Judged]) -> str:
    """Return what rows with weights in 4 bits say, and why those whose program is another may differ."""
    rows = [one for one in done if one.row["quantize"]]
    others: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in rows:
        if one.row["approximate"]:
            others[one.row["approximate"]].append(one)
    lines = [*_head("programs", "rows", "memory", "inside", "time", "inside", "the author's program")]
    for why, members in others.items():
        cells: list[str] = []
        for figures in ([one.memory for one in members], [one.time for one in members]):
            known = [figure for figure in figures if figure is not None]
            ratios = [figure.ratio for figure in known]
            cells += (
                [f"{min(ratios):.2f} to {max(ratios):.2f}", f"{sum(figure.inside for figure in known)}"]
                if known
                else ["-", "-"]
            )
        names = f"`{members[0].row['id']}`" + (f" to `{members[-1].row['id']}`" if members[1:] else "")
        lines.append(_line(names, len(members), *cells, why))
    return (
        f"{len(rows)} rows; no value was fitted to them. Of {len(rows) - sum(map(len, others.values()))} the "
        "program is known, and they are in the statistics. The others:\n\n" + "\n".join(lines)
    )


def _bounds(done: list[Judged]) -> str:
    lines = [*_head("row", "ran", "expected there", "failed", "expected there, about", "usable", "right")]
    right: list[bool] = []
    for one in done:
        fails = (one.row["memory"] or {}).get("fails")
        if fails is None:
            continue
        usable, above = find_gpu(one.row["card"]).usable, one.expected * fails / one.row["batch"]
        right.append(one.expected <= usable < above)
        sizes = (_gib(one.expected), fails, _gib(above), _gib(usable))
        lines.append(_line(f"`{one.row['id']}`", one.row["batch"], *sizes, "yes" if right[-1] else "no"))
    return f"{sum(right)} of {len(right)} are right.\n\n" + "\n".join(lines)


def _table(done: list[Judged]) -> str:
    figures = ("published", "low", "expected", "high", "ratio")
    lines = [*_head("row", "", "card", "batch", "dtype", *figures, *figures)]
    for one in done:
        mark = (
            "approximate" if one.row["approximate"] else half(one.row) if one.row["sourced"] else "recalled"
        )
        first = (f"`{one.row['id']}`", mark, _card(one.row), one.row["batch"], compute_dtype(one.row))
        lines.append(_line(*first, *_cells(one.memory, _gib), *_cells(one.time, _ms)))
    return "\n".join(lines)


def _cells(figure: Figure | None, shown: Callable[[float], str]) -> list[str]:
    """Return published, low, expected, high and the ratio, marked if published lies outside."""
    if figure is None:
        return ["-"] * 5
    return [*map(shown, figure), f"{figure.ratio:.2f}{'' if figure.inside else ' out'}"]


def _head(*names: str) -> tuple[str, str]:
    return _line(*names), "|" + "---|" * len(names)


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"
