"""Results of sizing as tables, for the screen and for the page: each column is declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..comparison.tables import Column, Table, make_table
from ..graphs.units import duration, format_bytes, signed
from ..planner.bounds import offloads
from ..planner.simulator.simulate import Figures
from .alternatives import Alternative
from .at_once import ADAPTERS, AtOnce, WayAtOnce
from .breakdown import KINDS, Breakdown, MemoryShare
from .estimate_range import Span
from .result import CurvePoint, SizeResult
from .trial import BatchTrial
from .words import number

R = TypeVar("R")
V = TypeVar("V")

AT_ONCE = (
    "Estimated without a solver. Checkpointing is torch.utils.checkpoint around each layer, "
    f"LoRA is --lora {ADAPTERS}."
)
_MODULES = 12
"""Modules with a row of their own; the others share one."""


def written(value: V | None, words: Callable[[V], str]) -> str:
    """Return a figure in words, '-' if there is none."""
    return "-" if value is None else words(value)


def span_columns(span: Callable[[R], Span | None], *ends: str) -> list[Column[R]]:
    """Return a column for each end of a span of bytes: low, expected, high."""

    # A function per end: a lambda made in the loop would see the last `end`.
    def column(end: str) -> Column[R]:
        return end, lambda row: written(span(row), lambda there: size(getattr(there, end)))

    return [column(end) for end in ends]


def size(amount: float) -> str:
    return format_bytes(int(amount))


def between(span: Span, words: Callable[[float], str]) -> str:
    """Format a span as '11.2 GiB (10.9 GiB to 11.8 GiB)'."""
    low, expected, high = map(words, span)
    return f"{expected} ({low} to {high})"


def rate_words(found: SizeResult, rate: float) -> str:
    """Return samples per second with three digits; on one GPU all digits of a large number."""
    if found.peers is not None:
        return number(rate, 3)
    return three_digits(rate)


def three_digits(rate: float) -> str:
    """Return a rate with three digits, or all those of a large number before its point."""
    # .3g of 12345 is 1.23e+04.
    return f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"


def batch_table(found: SizeResult, title: str, hint: str) -> Table:
    def planned(cell: Callable[[Figures], str]) -> Callable[[BatchTrial], str]:
        return lambda one: written(one.figures, cell)

    def policy(words: Callable[[BatchTrial, float], str]) -> Callable[[BatchTrial], str]:
        return lambda one: written(found.policy(one), lambda row: words(one, row.seconds or 0.0))

    def mark(one: BatchTrial, sign: str, words: str) -> str:
        return f"{sign if one.batch in found.hasty else ''}{words}" if one.figures else "-"

    def span(one: BatchTrial) -> Span | None:
        return found.spans.get(one.batch)

    def time(one: BatchTrial) -> str:
        return mark(one, "≤", duration(one.seconds or 0.0))

    def rate(one: BatchTrial) -> str:
        # Time and rate are inverse: an upper bound of one is a lower bound of the other.
        return mark(one, "≥", rate_words(found, found.rate(one)))

    host = planned(lambda figures: format_bytes(figures.host_peak))
    if found.peers is None:
        pinned = planned(lambda figures: format_bytes(figures.pinned_peak))
        columns: list[Column[BatchTrial]] = [
            ("batch", _batch),
            ("baseline peak", lambda one: format_bytes(one.baseline_figures.peak)),
            *span_columns(span, "low", "expected", "high"),
            ("host peak", host),
            *([("pinned", pinned)] if found.machine.pinned is not None else []),
            ("time", time),
            ("overhead", lambda one: mark(one, "≤", signed(one.overhead or 0.0))),
            ("samples/s", rate),
        ]
    else:
        columns = [
            ("batch", _batch),
            ("FSDP2", policy(lambda _one, seconds: duration(seconds))),
            ("samples/s", policy(lambda one, seconds: rate_words(found, found.rate(one, seconds)))),
            ("plan", time),
            ("samples/s", rate),
            *span_columns(span, "expected", "high"),
            *([("host", host)] if offloads(found.machine) else []),
        ]
    return make_table(title, [*columns, ("", lambda one: verdict(one, found))], found.by_batch, hint)


def _batch(one: BatchTrial) -> str:
    return f"{one.batch:,}{f' x {one.steps:,}' if one.steps > 1 else ''}"


def batch_words(one: BatchTrial) -> str:
    """Return 'batch 8', or 'batch 64 as 8 micro-batches of 8'."""
    if one.steps == 1:
        return f"batch {one.batch:,}"
    return f"batch {one.samples:,} as {one.steps:,} micro-batches of {one.batch:,}"


def verdict(one: BatchTrial, found: SizeResult) -> str:
    """Describe in words whether a batch fits."""
    if one.figures is None:
        if one.proven_infeasible:
            return "no: below the minimum"
        return f"no plan found: {one.unanswered.reason}" if one.unanswered else "no plan found"
    policy = found.policy(one)
    words = "fits with a plan" if policy is None else f"fits: FSDP2 {policy.name}"
    if found.peers is not None:
        return f"{words}; most samples/s" if one is found.fastest else words
    words = "fits" if one.batch in found.as_it_is else words
    words += ", tight" if found.tight(one.batch) else ""
    marks = ["most samples/s"] if one is found.fastest else []
    if one is found.advised:
        marks = [*(marks or ["within 5 % of the most samples/s"]), "train with this"]
    return f"{words}; {': '.join(marks)}" if marks else words


def way_table(found: SizeResult, title: str, rows: Iterable[Alternative]) -> Table:
    """Return the table of ways to train with a batch."""

    def rate(words: Callable[[float], str]) -> Callable[[Alternative], str]:
        return lambda row: written(row.samples_per_second, words)

    def way(row: Alternative) -> str:
        # A policy of FSDP2 that does not fit has no seconds; a loop without a plan has some anyway.
        excess = row.span is not None and (not row.seconds or row.span.expected > found.room.limit)
        notes = "; ".join(filter(None, ("does not fit" if excess else "", row.note)))
        return f"{row.name}: {notes}" if notes else row.name

    tokens = found.tokens if found.peers is None else None
    columns: list[Column[Alternative]] = [
        *span_columns(lambda row: row.span, "expected", "high"),
        ("time", lambda row: duration(row.seconds) if row.seconds else "-"),
        ("samples/s", rate(lambda rate: rate_words(found, rate))),
        *([("tokens/s", rate(lambda rate: number(rate * tokens)))] if tokens else []),
        ("", way),
    ]
    return make_table(title, columns, rows)


def curve_table(found: SizeResult, title: str) -> Table:
    """Return the table of time against memory on each rank."""

    def saves(point: CurvePoint) -> str:
        policy, plan = point.policy_seconds, point.seconds
        return signed(plan / policy - 1.0) if policy and plan else "-"

    host: list[Column[CurvePoint]] = [("host", lambda point: written(point.host_peak, format_bytes))]
    columns: list[Column[CurvePoint]] = [
        ("memory of each", lambda point: format_bytes(point.budget)),
        *(host if offloads(found.machine) else []),
        ("FSDP2", lambda point: written(point.policy_seconds, duration)),
        ("plan", lambda point: written(point.seconds, duration)),
        ("saves", saves),
        ("FSDP2's policy", lambda point: point.policy or "none fits"),
    ]
    return make_table(title, columns, found.curve)


def unfit(found: SizeResult) -> str:
    """Return the words for no batch that fits: below the minimum memory none can, else none was found."""
    if not found.trials:
        return "interrupted"
    if found.unanswered:
        return f"no plan found: {found.unanswered[0].reason}"
    proven = all(one.proven_infeasible for one in found.trials)
    return "does not fit" if proven else "does not fit by any plan found"


def at_once_table(found: Sequence[AtOnce]) -> Table:
    """Return the table of what fits each GPU without a plan, a column of batches for each way."""

    # Every GPU has the same ways in the same order.
    def way(place: int) -> Column[AtOnce]:
        return found[0].ways[place].name, lambda one: _way_at_once(one.ways[place])

    columns: list[Column[AtOnce]] = [
        ("to use", lambda one: format_bytes(one.room.limit)),
        *map(way, range(len(found[0].ways))),
        ("gpu", lambda one: one.preset.name),
    ]
    return make_table("without a plan: largest batch (samples/s)", columns, found, AT_ONCE)


def _way_at_once(way: WayAtOnce) -> str:
    speed = written(way.samples_per_second, three_digits)
    return "-" if way.batch is None else f"{way.batch:,} ({speed})"


def gpu_table(results: list[SizeResult], title: str, hint: str, *, priced: bool) -> Table:
    """Return the table with a row per GPU. priced: with a column of samples for the price."""

    def batch(chosen: Callable[[SizeResult], BatchTrial | None]) -> Callable[[SizeResult], str]:
        return lambda found: written(chosen(found), _batch)

    def span(found: SizeResult) -> Span | None:
        return found.advised and found.spans.get(found.advised.batch)

    def advised(words: Callable[[SizeResult, BatchTrial], str]) -> Callable[[SizeResult], str]:
        return lambda found: written(found.advised, lambda one: words(found, one))

    def gpu(found: SizeResult) -> str:
        one, name = found.advised, found.preset.name
        if one is None:
            return f"{name}: {unfit(found)}"
        plan, tight = one.batch not in found.as_it_is, found.tight(one.batch)
        return f"{name}{': with a plan' if plan else ''}{', tight' if tight else ''}"

    def bought(found: SizeResult) -> str:
        return written(found.samples_per_price(), lambda samples: number(samples, 3))

    columns: list[Column[SizeResult]] = [
        ("to use", lambda found: format_bytes(found.room.limit)),
        ("no plan", batch(lambda found: found.unplanned)),
        ("largest", batch(lambda found: found.largest)),
        ("train with", batch(lambda found: found.advised)),
        *span_columns(span, "expected", "high"),
        (
            "host",
            advised(lambda _found, one: written(one.figures, lambda there: format_bytes(there.host_peak))),
        ),
        ("time", advised(lambda _found, one: duration(one.seconds or 0.0))),
        ("samples/s", advised(lambda found, one: rate_words(found, found.rate(one)))),
        *([("samples per 1.00", bought)] if priced else []),
        ("gpu", gpu),
    ]
    return make_table(title, columns, results, hint)


def kind_table(parts: Breakdown, title: str) -> Table:
    columns: list[Column[tuple[str, int]]] = [
        ("bytes", lambda row: format_bytes(row[1])),
        ("share", lambda row: _share(row[1], parts.whole.total)),
        ("kind", lambda row: row[0]),
    ]
    return make_table(title, columns, zip(KINDS, parts.whole.sizes, strict=True))


def module_table(parts: Breakdown, title: str, hint: str) -> Table:
    def kind(place: int) -> Callable[[MemoryShare], str]:
        return lambda part: format_bytes(part.sizes[place]) if part.sizes[place] else "-"

    shown, rest, whole = parts.modules[:_MODULES], parts.modules[_MODULES:], parts.whole
    if rest:
        columns = zip(*(part.sizes for part in rest), strict=True)
        seconds = sum(part.seconds for part in rest)
        # So that each column adds up to the whole.
        shown = (*shown, MemoryShare(f"({len(rest):,} others)", tuple(map(sum, columns)), seconds))
    return make_table(
        title,
        [
            ("bytes", lambda part: format_bytes(part.total)),
            ("share", lambda part: _share(part.total, whole.total)),
            *((name, kind(place)) for place, name in enumerate(KINDS)),
            ("time", lambda part: _share(part.seconds, whole.seconds)),
            ("module", lambda part: part.name),
        ],
        shown,
        hint,
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}"
