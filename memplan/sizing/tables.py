"""Results of `plan size` as tables of text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..comparison.tables import Table
from ..graphs.units import duration, format_bytes, signed
from ..report.size import Bar, Section
from .alternatives import Alternative, NextSteps
from .breakdown import KINDS, Breakdown, MemoryShare
from .estimate_range import Span, time_span
from .search import SizeResult
from .subject import Subject
from .trial import BatchTrial
from .words import number

Cells = tuple[list[str], list[list[str]]]
"""Heads and rows; the last column has words."""

_MODULES = 12
"""Modules with a row of their own; the others share one."""


def batch_table(found: SizeResult) -> Cells:
    heads = [
        "batch",
        "baseline peak",
        "low",
        "expected",
        "high",
        "host peak",
        "time",
        "overhead",
        "samples/s",
        "",
    ]
    pinned = found.preset.machine.pinned is not None
    if pinned:
        heads.insert(6, "pinned")
    return heads, [_batch(one, found, pinned=pinned) for one in sorted(found.trials, key=lambda t: t.batch)]


def _batch(one: BatchTrial, found: SizeResult, *, pinned: bool) -> list[str]:
    times = f" x {one.steps:,}" if one.steps > 1 else ""
    first = [f"{one.batch:,}{times}", format_bytes(one.baseline_figures.peak)]
    figures = one.figures
    if figures is None:
        return [*first, *["-"] * (7 + pinned), verdict(one, found)]
    span, most = found.spans.get(one.batch), "≤" if one.batch in found.hasty else ""
    needs = ["-"] * 3 if span is None else [*map(size, span)]
    below = [figures.host_peak, *([figures.pinned_peak] if pinned else [])]
    least = "≥" if most else ""
    time, overhead = duration(one.seconds or 0.0), signed(one.overhead or 0.0)
    speed = [f"{most}{time}", f"{most}{overhead}", f"{least}{rate(one)}"]
    return [*first, *needs, *map(format_bytes, below), *speed, verdict(one, found)]


def batch_words(one: BatchTrial) -> str:
    """Return 'batch 8', or 'batch 64 as 8 micro-batches of 8'."""
    if one.steps == 1:
        return f"batch {one.batch:,}"
    return f"batch {one.samples:,} as {one.steps:,} micro-batches of {one.batch:,}"


def verdict(one: BatchTrial, found: SizeResult) -> str:
    """Describe in words whether a batch fits."""
    if one.figures is None and one.unanswered is not None:
        return f"no plan found: {one.unanswered.reason}"
    if one.figures is None:
        return "no: below the minimum" if one.proven_infeasible else "no plan found"
    words = "fits" if one.batch in found.as_it_is else "fits with a plan"
    words += ", tight" if found.tight(one.batch) else ""
    if one is found.nearly_fastest and one is not found.fastest:
        return f"{words}; within 5 % of the most samples/s"
    return f"{words}; most samples/s: train with this" if one is found.fastest else words


def next_title(steps: NextSteps) -> str:
    return f"batch {steps.batch:,}: other ways; plans within {format_bytes(steps.within)}"


def next_table(found: SizeResult) -> Cells:
    """Return the table of what people do next, a row each."""
    heads = ["expected", "high", "time", "samples/s", *(["tokens/s"] if found.tokens else []), ""]
    rows = found.next_steps.rows if found.next_steps else ()
    return heads, [_next(row, found, len(heads) - 1) for row in rows]


def _next(row: Alternative, found: SizeResult, columns: int) -> list[str]:
    words = f"{row.name}: {row.note}" if row.note else row.name
    if row.span is None:
        return [*["-"] * columns, words]
    rate = row.samples_per_second or 0.0
    tokens = [number(rate * found.tokens)] if found.tokens else []
    if row.span.expected > found.room.limit:
        words = f"{row.name}: does not fit" + (f"; {row.note}" if row.note else "")
    sizes = [size(row.span.expected), size(row.span.high)]
    return [*sizes, duration(row.seconds), f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}", *tokens, words]


def unfit(found: SizeResult) -> str:
    """Return the words for no batch that fits: below the minimum memory none can, else none was found."""
    if not found.trials:
        return "interrupted"
    if found.unanswered:
        return f"no plan found: {found.unanswered[0].reason}"
    proven = all(one.proven_infeasible for one in found.trials)
    return "does not fit" if proven else "does not fit by any plan found"


def gpu_table(found: list[SizeResult]) -> Cells:
    """Return the table with a row per GPU."""
    heads = ["to use", "no plan", "largest", "train with", "expected", "high", "time", "samples/s", "gpu"]
    priced = any(one.price is not None for one in found)
    if priced:
        heads.insert(-1, "samples per 1.00")
    return heads, [_gpu(one, priced=priced) for one in found]


def cheapest(found: list[SizeResult]) -> SizeResult | None:
    """Return the GPU with the most samples for its price, None without prices."""

    def bought(one: SizeResult) -> float:
        return 0.0 if one.fastest is None else one.samples_per_price(one.fastest) or 0.0

    best = max(found, key=bought, default=None)
    return best if best is not None and bought(best) else None


def _gpu(found: SizeResult, *, priced: bool) -> list[str]:
    def batch(one: BatchTrial | None) -> str:
        return "-" if one is None else f"{one.batch:,}{f' x {one.steps:,}' if one.steps > 1 else ''}"

    first = [
        format_bytes(found.room.limit),
        batch(found.unplanned),
        batch(found.largest),
        batch(found.fastest),
    ]
    marked = found.fastest
    if marked is None or marked.figures is None:
        return [*first, *"----", *(["-"] if priced else []), f"{found.preset.name}: {unfit(found)}"]
    span = found.spans.get(marked.batch)
    needs = [size(span.expected), size(span.high)] if span else [*"--"]
    words = f"{found.preset.name}{'' if marked.batch in found.as_it_is else ': with a plan'}"
    words += ", tight" if found.tight(marked.batch) else ""
    bought = found.samples_per_price(marked)
    price = ["-" if bought is None else number(bought, 3)] if priced else []
    return [*first, *needs, duration(marked.seconds or 0.0), rate(marked), *price, words]


def kind_table(parts: Breakdown) -> Cells:
    whole = parts.whole
    return ["bytes", "share", "kind"], [
        [format_bytes(held), _share(held, whole.total), kind]
        for kind, held in zip(KINDS, whole.sizes, strict=True)
    ]


def module_table(parts: Breakdown) -> Cells:
    heads = ["bytes", "share", *KINDS, "time", "module"]
    shown, rest = parts.modules[:_MODULES], parts.modules[_MODULES:]
    if rest:
        columns = zip(*(part.sizes for part in rest), strict=True)
        seconds = sum(part.seconds for part in rest)
        shown = (*shown, MemoryShare(f"({len(rest):,} others)", tuple(map(sum, columns)), seconds))
    return heads, [_module(part, parts.whole) for part in shown]


def _module(part: MemoryShare, whole: MemoryShare) -> list[str]:
    sizes = [format_bytes(held) if held else "-" for held in part.sizes]
    time = _share(part.seconds, whole.seconds)
    return [format_bytes(part.total), _share(part.total, whole.total), *sizes, time, part.name]


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}"


def rate(one: BatchTrial) -> str:
    found = one.samples_per_second or 0.0
    return f"{found:,.3g}" if found < 1000 else f"{found:,.0f}"


def size(amount: float) -> str:
    return format_bytes(int(amount))


def between(span: Span, words: Callable[[float], str]) -> str:
    """Format a span as '11.2 GiB (10.9 GiB to 11.8 GiB)'."""
    low, expected, high = map(words, span)
    return f"{expected} ({low} to {high})"


# ── the page ────────────────────────────────────────────────────────────────────────────────────────

ENDS = (
    "Low: tensors only. Expected: plus typical kernel workspace. High: plus worst-case workspace; without a "
    "plan also fragmentation of PyTorch's allocator."
)

HASTY = "≤: from a short search; a longer search may be faster."


def sections(found: list[SizeResult], subject: Subject) -> Iterator[Section]:
    if len(found) > 1:
        yield Section(_table("All GPUs", gpu_table(found), "no plan, largest, train with: batches."))
    for one in found:
        yield from _sections(one, several=len(found) > 1)


def _sections(found: SizeResult, *, several: bool) -> Iterator[Section]:
    name = found.preset.name if several else found.preset.gpu.name
    hint = f"{ENDS} {HASTY if found.hasty else ''} {format_bytes(found.room.limit)} may be used"
    hint += f", {format_bytes(found.room.reserve)} stay free." if found.room.reserve else "."
    yield Section(_table(name, batch_table(found), hint), _bars(found), _line(found))
    if found.next_steps is not None:
        yield Section(_table(next_title(found.next_steps), next_table(found)))
    if found.parts is not None and found.fastest is not None and not several:
        title = f"Batch {found.fastest.batch:,}: what the device holds when it holds most"
        yield Section(_table(title, kind_table(found.parts)))
        yield Section(_table("By module", module_table(found.parts), "Layer indices are shown as *."))


def _line(found: SizeResult) -> str:
    marked = found.fastest
    if marked is None or marked.figures is None:
        return f"It {unfit(found)}."
    plan = "without a plan" if marked.batch in found.as_it_is else "with a plan"
    times = between(time_span(marked.seconds or 0.0), duration)
    return (
        f"It fits. Train with {batch_words(marked)}, {plan}: {rate(marked)} samples/s, {times} an iteration."
    )


def _bars(found: SizeResult) -> tuple[Bar, ...]:
    return tuple(
        Bar(f"{one.batch:,}", one.samples_per_second or 0.0, one is found.fastest, found.spans.get(one.batch))
        for one in sorted(found.fitting, key=lambda one: one.batch)
    )


def _table(title: str, cells: Cells, hint: str = "") -> Table:
    return Table(title, *cells, hint)
