"""Results of sizing in words and tables, from which the screen and the page are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..graphs.machines.networks import network_rows
from ..graphs.machines.presets import ASSUMED
from ..graphs.units import duration, format_bytes, signed
from ..planner.bounds import offloads
from ..planner.budget import spelled
from ..report.size import Bar, Filter, Section
from ..report.tradeoff import Curve
from .alternatives import Alternative
from .estimate_range import Span, time_span
from .lengths import ManyLengths, WayByLength
from .result import SizeResult
from .sizing import Sizes
from .subject import Subject
from .tables import (
    at_once_table,
    batch_table,
    batch_words,
    between,
    curve_table,
    gpu_table,
    kind_table,
    module_table,
    rate_words,
    size,
    three_digits,
    unfit,
    way_table,
)
from .trial import BatchTrial
from .words import capital, gpu_title, number, short_sizes, with_article

PLAN = "memplan's plan"
ENDS = (
    "Low: tensors only. Expected: plus typical kernel workspace. High: plus worst-case workspace; without a "
    "plan also fragmentation of PyTorch's allocator."
)
ASSUMED_HOST = ", assumed: --host says what yours has"
HASTY = "≤: from a short search; a longer search may be faster."

DOUBTFUL = 1.25
"""Times the limit: where the high end of the memory is above, the answer is "perhaps"."""

Row = tuple[str, str]
"""A label and its text."""


class Answer(NamedTuple):
    """The answer of `plan size`, in words and tables.

    line: whether it fits; empty for several GPUs.
    facts: what was asked, above the table.
    table: of the batches, or of the GPUs.
    summary: rows below it.
    details: tables of the batch to train with.
    page: sections that the page has in addition, if there is one: they take some time.
    """

    line: str
    facts: list[Row]
    table: Section
    summary: list[Row]
    details: list[Section]
    page: list[Section] = []  # noqa: RUF012

    @property
    def sections(self) -> list[Section]:
        """The sections of the page."""
        titles = [capital(section.table.title) for section in self.details]
        pairs = zip(self.details, titles, strict=True)
        details = [section._replace(table=section.table._replace(title=title)) for section, title in pairs]
        return [self.table, *details, *self.page]


def answer_of(sizes: Sizes, *, page: bool = True) -> Answer:
    """Return what is said of the results on one GPU, on ranks, or on several GPUs.

    page: whether there will be one.
    """
    subject, results = sizes.subject, sizes.results
    if sizes.several:
        return _several(sizes, page=page)
    (found,) = results
    table = _batch_section(found, found.preset.gpu.name)
    return Answer(line_of(found), list(_facts(found, subject)), table, list(_summary(found)), _details(found))


def _several(sizes: Sizes, *, page: bool) -> Answer:
    results = sizes.results
    best = cheapest(results)
    priced = any(one.price is not None for one in results)
    table = gpu_table(results, "All GPUs", "no plan, largest, train with: batches.", priced=priced)
    first = [Section(at_once_table(sizes.at_once))] if sizes.at_once else []
    return Answer(
        line="",
        facts=several_facts(sizes.subject),
        table=Section(table, answer=unfinished(sizes), filters=_filters(priced=priced)),
        summary=[("most samples for the price", best.preset.name)] if best else [],
        details=[],
        page=[*first, *(_batch_section(found, found.preset.name) for found in results)] if page else [],
    )


def _filters(*, priced: bool) -> tuple[Filter, ...]:
    """Return the fields that choose GPUs on the page."""
    price = (Filter("least samples per 1.00", "samples per 1.00", most=False),) if priced else ()
    return (
        Filter("card", "gpu"),
        Filter("most seconds an iteration", "time", most=True),
        Filter("least samples/s", "samples/s", most=False),
        *price,
    )


def several_facts(subject: Subject) -> list[Row]:
    """Return what was asked of several GPUs."""
    what, precision = subject.what, subject.loop.precision
    return [
        *([("model", what)] if what else []),
        ("optimizer", subject.optimizer),
        *([("mixed precision", precision)] if precision else []),
    ]


def unfinished(sizes: Sizes) -> str:
    """Return a line that names the GPUs without an answer, empty if all have theirs."""
    if not sizes.left:
        return ""
    there, left = len(sizes.results), ", ".join(sizes.left)
    return f"Interrupted: {there:,} of {there + len(sizes.left):,} GPUs were tried. Not tried: {left}."


def cheapest(results: list[SizeResult]) -> SizeResult | None:
    """Return the GPU with the most samples for its price, None without prices."""
    best = max(results, key=lambda found: found.samples_per_price() or 0.0)
    return best if best.samples_per_price() else None


# ── the first line ──────────────────────────────────────────────────────────────────────────────────


def line_of(found: SizeResult) -> str:
    """Return one line: whether it fits, or which batch to train with, how, with its memory and speed."""
    one = found.advised
    if one is None or one.seconds is None:
        return f"no: {nothing_fits(found)}"
    alone, gpu = found.peers is None, gpu_title(found.preset.gpu)
    where = with_article(gpu) if alone else f"each of {found.gpus:,} {gpu}"
    seconds, span, how = _advised(found, one, one.seconds)
    # The high end has the worst workspace of all kernels: a little above the limit it is still a yes.
    sure = "perhaps" if span is not None and span.high > DOUBTFUL * found.room.limit else "yes"
    line = f"{sure}: {batch_words(one)} {'fits' if alone else 'on'} {where} {'' if alone else 'fits '}{how}"
    if span is not None:
        expected, high, limit = short_sizes((span.expected, span.high, found.room.limit))
        line += f": {expected} expected, up to {high}, of {limit}{'' if alone else ' each'}"
    rate, times, samples = found.rate(one, seconds), time_span(seconds), found.gpus * one.samples
    line += f"; {number(rate)} samples/s{'' if alone else ' in all'}"
    if seconds:
        # The longest time gives the lowest rate.
        line += f" ({number(samples / times.high)} to {number(samples / times.low)})"
    if found.tokens is not None:
        line += f", {number(rate * found.tokens)} tokens/s"
    bought = found.samples_per_price(rate)
    return line if bought is None else f"{line}; {number(bought)} samples per 1.00"


def _advised(found: SizeResult, one: BatchTrial, planned: float) -> tuple[float, Span | None, str]:
    """Return seconds, device bytes and words of the way to train: FSDP2's if no plan is faster.

    planned: seconds of the plan.
    """
    policy = found.policy(one)
    if policy is not None and policy.seconds is not None and not found.plan_is_faster:
        return policy.seconds, found.policy_spans.get(policy.name), f"by FSDP2 ({policy.name})"
    how = "as it is" if one.batch in found.as_it_is else "with a plan"
    if one.figures is not None and one.figures.host_peak:
        how += f" and {short_sizes([one.figures.host_peak])[0]} of host memory"
    tight = found.peers is None and found.tight(one.batch)
    return planned, found.spans.get(one.batch), f"{how}, tight" if tight else how


def nothing_fits(found: SizeResult) -> str:
    """Return one line: what the smallest batch needs."""
    if not found.trials:
        return "interrupted before the first batch was tried"
    one, least, kept = found.trials[0], found.least, found.room.constant
    where = "" if found.peers is None else " on each rank"
    tried = "" if one.proven_infeasible else " by any plan found"
    smallest = f": the smallest budget found is {spelled(least.budget + kept)}" if least else ""
    kind = f"{'with' if offloads(found.machine) else 'without'} offloading"
    if found.peers is not None:
        kind = f"with {found.peers.ranks:,} ranks"
    needs = f"the minimum memory {kind} is {spelled(one.min_memory + kept)}"
    if policies := found.policies.get(one.batch):
        policy = min(policies, key=lambda row: row.least)
        # Twice, as in Room.unplanned: without a plan the thread of backward has a cuBLAS workspace too.
        needs += f", FSDP2's ({policy.name}) {spelled(policy.least + 2 * kept)}"
    line = f"batch {one.batch:,}{where} does not fit within {spelled(found.room.limit)}{tried}{smallest}"
    unanswered = one.unanswered and one.unanswered.reason
    return "; ".join(filter(None, (line, needs, unanswered, pinning(found))))


def pinning(found: SizeResult) -> str | None:
    """Return one line if pinned memory, neither the device's nor the host's, keeps a batch from fitting."""
    one = found.pinning
    if one is None or one.figures is None or found.pinned is None:
        return None
    need = f"its schedule pins {spelled(one.figures.least_pinned)}"
    return f"batch {one.batch:,} would fit but for host.pinned, {spelled(found.pinned)}: {need}"


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────


def _facts(found: SizeResult, subject: Subject) -> Iterator[Row]:
    """Yield what was asked: the GPU, the model and its loop, the bytes."""
    room, alone = found.room, found.peers is None
    yield "gpu", f"{found.preset.gpu.name}: estimated, see the low and high ends"
    if found.peers is not None:
        yield from network_rows(found.peers)
        yield from _host_rows(found)
    if subject.what:
        yield "model", subject.what
    if found.lengths is not None:
        yield "lengths", f"{found.lengths.samples}, each batch padded to its longest"
    yield "optimizer", subject.optimizer
    yield from _loop_rows(found, subject)
    left = f", {format_bytes(room.reserve)} in reserve" if room.reserve else ""
    yield "budget", f"{spelled(room.limit)}{'' if alone else ' each'}{left}"
    if alone:
        yield from _host_rows(found)
    if found.shares:
        yield "shares", f"{format_bytes(found.shares)} of weights and states each"


def _loop_rows(found: SizeResult, subject: Subject) -> Iterator[Row]:
    """Yield what the options change in the loop."""
    loop = subject.loop
    if loop.precision:
        yield "mixed precision", loop.precision
    if found.adapters is not None:
        yield "lora", found.adapters
    if loop.quantize:
        yield "quantize", f"{loop.quantize}: frozen linear weights in 4 bits, as bitsandbytes keeps them"
    if loop.autocast:
        yield "autocast", f"{loop.autocast}, of forward and loss"
    if loop.attention:
        yield "attention", loop.attention
    if loop.expandable_segments:
        yield "allocator", "with expandable segments, without a plan"
    if loop.accumulate > 1:
        yield "accumulate", f"{loop.accumulate:,} micro-batches per update; times are of an update"
    if loop.total is not None:
        tried = ", ".join(f"{one.batch:,}" for one in found.by_batch)
        yield "global batch", f"{loop.total:,} samples per update; micro-batches tried: {tried}"


def _host_rows(found: SizeResult) -> Iterator[Row]:
    """Yield a row with what the host holds, if tensors can be offloaded to it."""
    capacity = found.machine.host_capacity
    if offloads(found.machine) and capacity is None:
        yield "host", "of any size: --host 64GB says what yours has"
    elif offloads(found.machine) and capacity is not None:
        assumed = found.preset.sources.get("host") == ASSUMED
        whose = "" if found.peers is None else " for each rank"
        yield "host", f"{spelled(capacity)}{whose}{ASSUMED_HOST if assumed else ''}"


def _summary(found: SizeResult) -> Iterator[Row]:
    """Yield on one GPU which batches fit, and how fast."""
    if found.peers is not None:
        return
    advised, fastest, largest, unplanned = found.advised, found.fastest, found.largest, found.unplanned
    if advised is not None:
        span, times = found.spans.get(advised.batch), time_span(advised.seconds or 0.0)
        needs = f", {between(span, size)} of memory" if span else ""
        yield "train with", f"{_rate(advised, found)}, {between(times, duration)}{needs}"
        if bought := found.samples_per_price():
            # `bought` samples cost 1.00.
            each, million = number(bought, 3), number(1e6 / bought, 3)
            yield "price", f"{found.price:g} per hour: {each} samples per 1.00, {million} per million samples"
    if fastest is not None and fastest is not advised:
        span = found.spans.get(fastest.batch)
        needs = f", {size(span.expected)} of memory" if span else ""
        yield "most samples/s", f"{_rate(fastest, found)}{needs}: within 5 % of it is enough"
    if unplanned is not None:
        yield "without a plan", f"up to {batch_words(unplanned)}, of those tried"
    if largest is not None and largest is not unplanned:
        yield "with a plan", f"up to {batch_words(largest)}, of those tried: {_speed(largest, found)}"
    if (least := found.least) is not None:
        within = f"{batch_words(least)} within {spelled(least.budget + found.room.constant)}"
        yield "smallest budget", f"{within}: {_speed(least, found)}"
    yield from _in_pieces(found)
    if found.lengths is not None:
        for way in found.lengths.ways:
            yield f"lengths, {way.name}", _by_length(way, found.lengths)
    if largest is not None and (line := pinning(found)):
        yield "pinned memory", line


def _by_length(way: WayByLength, found: ManyLengths) -> str:
    """Return what batches of many lengths take."""
    sizes = short_sizes((way.allocated, way.reserved, way.expandable))
    of_gpu = f", of which free segments are returned {way.retries:,} times" if way.retries else ""
    of_gpu = of_gpu if way.fits else ", more than the GPU has room for"
    return (
        f"batch {found.batch:,}: {sizes[0]} allocated at most; {sizes[1]} reserved after {found.batches:,} "
        f"batches{of_gpu}, {sizes[2]} with expandable segments; {duration(way.seconds)} on average, "
        f"{duration(way.longest_seconds)} the longest; {three_digits(way.samples_per_second)} samples/s"
    )


def _in_pieces(found: SizeResult) -> Iterator[Row]:
    """Yield what operations in pieces buy, if that was asked for."""
    if found.in_pieces is None:
        return
    least, largest = found.in_pieces
    rows = list[str]()
    if least is not None:
        rows.append(f"{batch_words(least)} within {spelled(least.budget + found.room.constant)}")
        rows[-1] += f" in {duration(least.seconds or 0.0)}"
    if largest is not None:
        rate = rate_words(found, found.rate(largest))
        rows.append(f"up to {batch_words(largest)}: {duration(largest.seconds or 0.0)}, {rate} samples/s")
    yield "with split=True", "; ".join(rows) or "nothing that splits makes it smaller"


def _rate(one: BatchTrial, found: SizeResult) -> str:
    return f"{batch_words(one)}: {rate_words(found, found.rate(one))} samples/s"


def _speed(one: BatchTrial, found: SizeResult) -> str:
    # Both come from short searches, so their times are upper bounds.
    most = " at most" if one is found.least or one.batch in found.hasty else ""
    overhead, rate = signed(one.overhead or 0.0), rate_words(found, found.rate(one))
    return f"{duration(one.seconds or 0.0)}{most}, {overhead} vs. baseline, {rate} samples/s"


# ── sections ────────────────────────────────────────────────────────────────────────────────────────


def _batch_section(found: SizeResult, name: str) -> Section:
    """Return the table of batches, with a figure. name: of the GPU."""
    bars = tuple(
        Bar(f"{one.batch:,}", found.rate(one), one is found.advised, found.spans.get(one.batch))
        for one in found.fitting
    )
    if found.peers is None:
        left = f", {format_bytes(found.room.reserve)} stay free" if found.room.reserve else ""
        hasty = HASTY if found.hasty else ""
        hint = f"{ENDS} {hasty} {format_bytes(found.room.limit)} may be used{left}."
        return Section(batch_table(found, name, hint), bars, _line_of_page(found))
    network = "; ".join(words for _label, words in network_rows(found.peers))
    hint = f"{network}. Samples per second are of all GPUs. ≤, ≥: from a short search."
    title = f"{name}: {found.gpus:,} GPUs"
    return Section(batch_table(found, title, hint), bars, f"{capital(line_of(found))}.")


def _line_of_page(found: SizeResult) -> str:
    one = found.advised
    if one is None:
        return f"It {unfit(found)}."
    so_far = "Interrupted: this is what was found so far. " if found.interrupted else ""
    _seconds, _span, how = _advised(found, one, one.seconds or 0.0)
    times = between(time_span(one.seconds or 0.0), duration)
    rate = rate_words(found, found.rate(one))
    return f"{so_far}It fits. Train with {batch_words(one)}, {how}: {rate} samples/s, {times} an iteration."


def _details(found: SizeResult) -> list[Section]:
    """Return what there is to say of the batch to train with."""
    one, steps = found.advised, found.next_steps
    sections = list[Section]()
    if steps is not None:
        title = f"batch {steps.batch:,}: other ways; plans within {format_bytes(steps.within)}"
        sections.append(Section(way_table(found, title, steps.rows)))
    if one is not None and found.parts is not None:
        title = f"batch {one.batch:,}: what the device holds when it holds most"
        modules = module_table(found.parts, "By module", "Layer indices are shown as *.")
        sections += [Section(kind_table(found.parts, title)), Section(modules, untitled=True)]
    if one is not None and found.peers is not None:
        title = f"batch {one.batch:,} on each rank: FSDP2's policies, and a plan"
        sections.append(Section(way_table(found, title, _ways(found, one))))
        title = f"batch {one.batch:,} on each rank: time against memory"
        curves = (
            Curve("FSDP2", [(point.budget, point.policy_seconds) for point in found.curve]),
            Curve("plan", [(point.budget, point.seconds) for point in found.curve]),
        )
        sections.append(Section(curve_table(found, title), curves=curves))
    return sections


def _ways(found: SizeResult, one: BatchTrial) -> Iterator[Alternative]:
    """Yield FSDP2's policies at a batch, and memplan's plan."""
    samples = found.gpus * one.samples
    for row in found.policies[one.batch]:
        span = found.policy_spans.get(row.name)
        yield Alternative(f"FSDP2: {row.name}", "", span, row.seconds or 0.0, samples)
    yield Alternative(PLAN, "", found.spans.get(one.batch), one.seconds or 0.0, samples)
