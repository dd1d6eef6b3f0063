"""Results of `plan size`, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ...graphs.machine import Machine
from ...graphs.units import duration, format_bytes, signed
from ...planner.bounds import offloads
from ...planner.budget import spelled
from ...sizing.alternatives import NextSteps
from ...sizing.breakdown import KINDS, Breakdown
from ...sizing.estimate_range import time_span
from ...sizing.search import SizeResult
from ...sizing.subject import Subject
from ...sizing.tables import (
    batch_table,
    batch_words,
    between,
    cheapest,
    gpu_table,
    kind_table,
    module_table,
    next_table,
    next_title,
    rate,
    size,
)
from ...sizing.trial import BatchTrial
from ...sizing.words import gpu_title, number, short_sizes, with_article
from ..printing.output import Row, labelled, table


def trial_document(one: BatchTrial, constant: int, found: SizeResult | None = None) -> dict[str, Any]:
    """Return a trial for JSON.

    constant: bytes that libraries keep outside the plan.
    found: the results that have the trial among their batches, None if it is not one of these.
    """
    figures = one.figures
    span = None if found is None else found.spans.get(one.batch)
    return {
        "batch": one.batch,
        "gradient_accumulation_steps": one.steps,
        "budget": one.budget,
        "device_budget": one.budget + constant,
        "fits": figures is not None,
        "unanswered": one.unanswered and one.unanswered._asdict(),
        "min_memory": one.min_memory,
        "baseline_peak": one.baseline_figures.peak,
        "baseline_time": one.baseline_seconds,
        "time": one.seconds,
        "peak": figures and figures.peak,
        "host_peak": figures and figures.host_peak,
        "pinned_peak": figures and figures.pinned_peak,
        "least_pinned": figures and figures.least_pinned,
        "disk_peak": figures and figures.disk_peak,
        "overhead": one.overhead,
        "samples_per_second": one.samples_per_second,
        "planned": None if figures is None or found is None else one.batch not in found.as_it_is,
        "needs": span and span._asdict(),
        "times": None if one.seconds is None else time_span(one.seconds)._asdict(),
        "tight": None if found is None or figures is None else found.tight(one.batch),
        "fastest_known": None if found is None or figures is None else one.batch not in found.hasty,
    }


def document_of(found: SizeResult, subject: Subject) -> dict[str, Any]:
    constant = found.room.constant

    def document(one: BatchTrial | None) -> dict[str, Any] | None:
        return one and trial_document(one, constant, found)

    return {
        "gpu": found.preset.gpu.name,
        "machine": found.preset.name,
        "answer": answer(found),
        "model": subject.what,
        "optimizer": subject.optimizer,
        "lora": found.adapters,
        "autocast": subject.loop.autocast,
        "attention": subject.loop.attention,
        "global_batch": subject.loop.total,
        "budget": found.room.limit,
        "reserve": found.room.reserve,
        "constant": constant,
        "host": found.preset.machine.host_capacity,
        "batches": [document(one) for one in sorted(found.trials, key=lambda one: one.batch)],
        "largest_batch": document(found.largest),
        "largest_unplanned": document(found.unplanned),
        "fastest_batch": document(found.fastest),
        "smallest_nearly_fastest": document(found.nearly_fastest),
        "tokens_per_sample": found.tokens,
        "price_per_hour": found.price,
        "samples_per_price": found.fastest and found.samples_per_price(found.fastest),
        "next_steps": found.next_steps and _next_document(found.next_steps, found.room.limit),
        "smallest_budget": found.least and trial_document(found.least, constant),
        "breakdown": found.parts and _parts_document(found.parts),
        "pinning": found.pinning and trial_document(found.pinning, constant),
        "interrupted": found.interrupted,
    }


def _next_document(steps: NextSteps, limit: int) -> dict[str, Any]:
    rows = [
        {
            "name": row.name,
            "note": row.note or None,
            "needs": row.span and row.span._asdict(),
            "fits": row.span and row.span.expected <= limit,
            "time": row.seconds if row.span else None,
            "samples_per_second": row.samples_per_second,
        }
        for row in steps.rows
    ]
    return {"batch": steps.batch, "within": steps.within, "rows": rows}


def several_document(found: list[SizeResult], subject: Subject) -> dict[str, Any]:
    best = cheapest(found)
    return {
        "most_samples_for_the_price": best and best.preset.name,
        "gpus": [document_of(one, subject) for one in found],
        "interrupted": any(one.interrupted for one in found),
    }


def _parts_document(parts: Breakdown) -> dict[str, Any]:
    rows = [
        {
            "module": part.name,
            **{kind.replace(" ", "_"): size for kind, size in zip(KINDS, part.sizes, strict=True)},
            "time": part.seconds,
        }
        for part in (parts.whole, *parts.modules)
    ]
    return {"all": rows[0], "modules": rows[1:]}


def answer(found: SizeResult) -> str:
    """Return one line: whether the batch fits, or which one to train with, with its memory and speed."""
    one = found.fastest
    if one is None or one.seconds is None:
        return f"no: {nothing_fits(found)}"
    how = "as it is" if one.batch in found.as_it_is else "with a plan"
    if found.tight(one.batch):
        how += ", tight"
    line = f"yes: {batch_words(one)} fits {with_article(gpu_title(found.preset.gpu))} {how}"
    if (span := found.spans.get(one.batch)) is not None:
        expected, high, limit = short_sizes((span.expected, span.high, found.room.limit))
        line += f": {expected} expected, up to {high}, of {limit}"
    rate, times = one.samples_per_second or 0.0, time_span(one.seconds)
    line += f"; {number(rate)} samples/s"
    if one.seconds:
        line += f" ({number(one.samples / times.high)} to {number(one.samples / times.low)})"
    if found.tokens is not None:
        line += f", {number(rate * found.tokens)} tokens/s"
    bought = found.samples_per_price(one)
    return line if bought is None else f"{line}; {number(bought)} samples per 1.00"


def lines_of(found: SizeResult, subject: Subject) -> Iterator[Text]:
    room = found.room
    yield Text(answer(found), style="bold")
    left = f", {format_bytes(room.reserve)} in reserve" if room.reserve else ""
    yield from labelled(
        [
            ("gpu", f"{found.preset.gpu.name}: estimated, see the low and high ends"),
            *([("model", subject.what)] if subject.what else []),
            ("optimizer", subject.optimizer),
            *loop_rows(found, subject),
            ("budget", f"{spelled(room.limit)}{left}"),
            *host_rows(found.preset.machine),
        ]
    )
    yield from table(*batch_table(found))
    yield from labelled(_summary(found))
    if found.next_steps is not None:
        yield Text("")
        yield Text(next_title(found.next_steps), style="bold")
        yield from table(*next_table(found))
    if found.parts is not None and found.fastest is not None:
        yield Text("")
        yield Text(f"batch {found.fastest.batch:,}: what the device holds when it holds most", style="bold")
        yield from table(*kind_table(found.parts))
        yield Text("")
        yield from table(*module_table(found.parts))


def loop_rows(found: SizeResult, subject: Subject) -> Iterator[Row]:
    """Yield what the options change in the loop."""
    loop = subject.loop
    if found.adapters is not None:
        yield "lora", found.adapters
    if loop.autocast:
        yield "autocast", f"{loop.autocast}, of forward and loss"
    if loop.attention:
        yield "attention", loop.attention
    if loop.accumulate > 1:
        yield "accumulate", f"{loop.accumulate:,} micro-batches per update; times are of an update"
    if loop.total is not None:
        tried = ", ".join(f"{one.batch:,}" for one in sorted(found.trials, key=lambda one: one.batch))
        yield "global batch", f"{loop.total:,} samples per update; micro-batches tried: {tried}"


def host_rows(machine: Machine, whose: str = "") -> list[Row]:
    """Return a row with what the host holds, if tensors can be offloaded to it. whose: words to add."""
    if not offloads(machine):
        return []
    if machine.host_capacity is None:
        return [("host", "of any size: --host 64GB says what yours has")]
    return [("host", spelled(machine.host_capacity) + whose)]


def several_lines(found: list[SizeResult], subject: Subject) -> Iterator[Text]:
    rows = [*([("model", subject.what)] if subject.what else []), ("optimizer", subject.optimizer)]
    yield from labelled(rows)
    yield from table(*gpu_table(found))
    if (best := cheapest(found)) is not None:
        yield from labelled([("most samples for the price", best.preset.name)])


def _summary(found: SizeResult) -> Iterator[Row]:
    fastest, largest, unplanned, least = found.fastest, found.largest, found.unplanned, found.least
    if fastest is not None and fastest.figures is not None:
        span, times = found.spans.get(fastest.batch), time_span(fastest.seconds or 0.0)
        needs = f", {between(span, size)} of memory" if span else ""
        yield (
            "train with",
            f"{batch_words(fastest)}: {rate(fastest)} samples/s, {between(times, duration)}{needs}",
        )
        if found.price is not None and (bought := found.samples_per_price(fastest)):
            each, million = number(bought, 3), number(1e6 / bought, 3)
            yield "price", f"{found.price:g} per hour: {each} samples per 1.00, {million} per million samples"
    nearly = found.nearly_fastest
    if nearly is not None and nearly is not fastest:
        span = found.spans.get(nearly.batch)
        needs = f", {size(span.expected)} of memory" if span else ""
        yield "within 5 %", f"{batch_words(nearly)}: {rate(nearly)} samples/s{needs}: the smallest tried"
    if unplanned is not None:
        yield "without a plan", f"up to {batch_words(unplanned)}, of those tried"
    if largest is not None and largest is not unplanned:
        yield "with a plan", f"up to {batch_words(largest)}, of those tried: {_speed(largest, found)}"
    if least is not None:
        yield (
            "smallest budget",
            f"{batch_words(least)} within {spelled(least.budget + found.room.constant)}: "
            f"{_speed(least, found)}",
        )
    if largest is not None and (line := pinning(found)):
        yield "pinned memory", line


def _speed(one: BatchTrial, found: SizeResult) -> str:
    assert one.figures is not None
    most = " at most" if one is found.least or one.batch in found.hasty else ""
    overhead = signed(one.overhead or 0.0)
    return f"{duration(one.seconds or 0.0)}{most}, {overhead} vs. baseline, {rate(one)} samples/s"


def pinning(found: SizeResult) -> str | None:
    """Return one line if pinned memory, neither the device's nor the host's, keeps a batch from fitting."""
    one = found.pinning
    if one is None or one.figures is None or found.pinned is None:
        return None
    need = f"its schedule pins {spelled(one.figures.least_pinned)}"
    return f"batch {one.batch:,} would fit but for host.pinned, {spelled(found.pinned)}: {need}"


def nothing_fits(found: SizeResult) -> str:
    if not found.trials:
        return "interrupted before the first batch was tried"
    one, least, room = found.trials[0], found.least, found.room
    kept = room.constant
    needs = f": the smallest budget found is {spelled(least.budget + kept)}" if least else ""
    kind = "with" if offloads(found.preset.machine) else "without"
    min_memory = f"the minimum memory {kind} offloading is {spelled(one.min_memory + kept)}"
    tried = "" if one.proven_infeasible else " by any plan found"
    line = f"batch {one.batch:,} does not fit within {spelled(room.limit)}{tried}{needs}; {min_memory}"
    unanswered = one.unanswered and one.unanswered.reason
    return "; ".join(filter(None, (line, unanswered, pinning(found))))
