"""Results of `plan size --ranks`, for people, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ...comparison.tables import Table
from ...graphs.units import duration, format_bytes, signed
from ...planner.budget import spelled
from ...report.size import Bar, Section
from ...report.tradeoff import Curve
from ...sizing.estimate_range import Span, time_span
from ...sizing.price import samples_per_price
from ...sizing.ranks import CurvePoint, PolicyFigures, RankBatch, RanksResult
from ...sizing.subject import Subject
from ...sizing.tables import Cells, size
from ...sizing.words import gpu_title, number, short_sizes
from ..network_options import replicas_document
from ..printing.figures import network_rows
from ..printing.output import labelled, table
from .report import host_rows

PLAN = "memplan's plan"


def ranks_answer(found: RanksResult) -> str:
    """Return one line: whether it fits the ranks, how, with memory and speed."""
    one = found.fastest
    if one is None or one.plan.seconds is None:
        return f"no: {ranks_nothing_fits(found)}"
    seconds, span, how = _advised(found, one)
    line = f"yes: batch {one.batch:,} on each of {found.gpus:,} {gpu_title(found.preset.gpu)} fits {how}"
    if span is not None:
        expected, high, limit = short_sizes((span.expected, span.high, found.room.limit))
        line += f": {expected} expected, up to {high}, of {limit} each"
    times, samples = time_span(seconds), found.gpus * one.batch
    line += f"; {number(samples / seconds)} samples/s in all"
    line += f" ({number(samples / times.high)} to {number(samples / times.low)})"
    if found.tokens is not None:
        line += f", {number(samples / seconds * found.tokens)} tokens/s"
    if (bought := _bought(found, samples / seconds)) is not None:
        line += f"; {number(bought)} samples per 1.00"
    return line


def _advised(found: RanksResult, one: RankBatch) -> tuple[float, Span | None, str]:
    """Return seconds, device bytes and words of the way to train: FSDP2's if no plan is faster."""
    if one.policy is not None and one.policy.seconds is not None and not found.plan_is_faster:
        return one.policy.seconds, found.policy_spans.get(one.policy.name), f"by FSDP2 ({one.policy.name})"
    assert one.plan.seconds is not None
    return one.plan.seconds, found.spans.get(one.batch), "with a plan"


def ranks_nothing_fits(found: RanksResult) -> str:
    if not found.batches:
        return "interrupted before the first batch was tried"
    one, constant = found.batches[0], found.room.constant
    needs = (
        f"the minimum memory with {found.peers.ranks:,} ranks is {spelled(one.plan.min_memory + constant)}"
    )
    if one.policies:
        least = min(one.policies, key=lambda row: row.least)
        needs += f", FSDP2's ({least.name}) {spelled(least.least + 2 * constant)}"
    tried = "" if one.plan.proven_infeasible else " by any plan found"
    line = f"batch {one.batch:,} on each rank does not fit within {spelled(found.room.limit)}{tried}; {needs}"
    reason = one.plan.unanswered and one.plan.unanswered.reason
    return f"{line}; {reason}" if reason else line


def ranks_lines(found: RanksResult, subject: Subject) -> Iterator[Text]:
    yield Text(ranks_answer(found), style="bold")
    room, loop = found.room, subject.loop
    left = f", {format_bytes(room.reserve)} in reserve" if room.reserve else ""
    yield from labelled(
        [
            ("gpu", f"{found.preset.gpu.name}: estimated, see the low and high ends"),
            *network_rows(found.peers),
            *host_rows(found.machine, " for each rank"),
            *([("model", subject.what)] if subject.what else []),
            ("optimizer", subject.optimizer),
            *([("lora", found.adapters)] if found.adapters else []),
            *([("autocast", f"{loop.autocast}, of forward and loss")] if loop.autocast else []),
            *([("attention", loop.attention)] if loop.attention else []),
            ("budget", f"{spelled(room.limit)} each{left}"),
            *(
                [("shares", f"{format_bytes(found.shares)} of weights and states each")]
                if found.shares
                else []
            ),
        ]
    )
    if found.batches:
        yield from table(*_batch_table(found))
    one = found.fastest
    if one is None:
        return
    yield Text("")
    yield Text(_policy_title(one), style="bold")
    yield from table(*_policy_table(found, one))
    yield Text("")
    yield Text(_curve_title(one), style="bold")
    yield from table(*_curve_table(found))


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────


def _batch_table(found: RanksResult) -> Cells:
    host = ["host"] if found.has_host else []
    heads = ["batch", "FSDP2", "samples/s", "plan", "samples/s", "expected", "high", *host, ""]
    rows = [_batch_row(found, one) for one in sorted(found.batches, key=lambda one: one.batch)]
    return heads, rows


def _batch_row(found: RanksResult, one: RankBatch) -> list[str]:
    policy, plan, span = one.policy, one.plan, found.spans.get(one.batch)
    by_policy = ["-", "-"] if policy is None else _speed(policy.seconds, found.policy_rate(one))
    if plan.seconds is None:
        reason = plan.unanswered.reason if plan.unanswered else None
        words = f"no plan found: {reason}" if reason else "no plan found"
        words = "no: below the minimum" if plan.proven_infeasible else words
        return [f"{one.batch:,}", *by_policy, *["-"] * (4 + found.has_host), words]
    most, least = ("≤", "≥") if one.batch in found.hasty else ("", "")
    time, rate = _speed(plan.seconds, found.rate(one, plan.seconds))
    needs = ["-", "-"] if span is None else [size(span.expected), size(span.high)]
    needs += _host_cell(found, plan.figures and plan.figures.host_peak)
    words = "fits with a plan" if policy is None else f"fits: FSDP2 {policy.name}"
    words += "; most samples/s" if one is found.fastest else ""
    return [f"{one.batch:,}", *by_policy, f"{most}{time}", f"{least}{rate}", *needs, words]


def _host_cell(found: RanksResult, host_peak: int | None) -> list[str]:
    """Return the cell of the host's bytes, none if plans use no host."""
    return [] if not found.has_host else ["-" if host_peak is None else size(host_peak)]


def _speed(seconds: float | None, rate: float | None) -> list[str]:
    return ["-", "-"] if not seconds or rate is None else [duration(seconds), number(rate, 3)]


def _policy_title(one: RankBatch) -> str:
    return f"batch {one.batch:,} on each rank: FSDP2's policies, and a plan"


def _policy_table(found: RanksResult, one: RankBatch) -> Cells:
    heads = ["expected", "high", "time", "samples/s", ""]
    rows = [_policy_row(found, one, row) for row in one.policies]
    span = found.spans.get(one.batch)
    sizes = ["-", "-"] if span is None else [size(span.expected), size(span.high)]
    return heads, [*rows, [*sizes, *_speed(one.plan.seconds, found.rate(one, one.plan.seconds)), PLAN]]


def _policy_row(found: RanksResult, one: RankBatch, row: PolicyFigures) -> list[str]:
    span = found.policy_spans.get(row.name)
    sizes = ["-", "-"] if span is None else [size(span.expected), size(span.high)]
    words = f"FSDP2: {row.name}" + ("" if row.seconds is not None else ": does not fit")
    return [*sizes, *_speed(row.seconds, found.rate(one, row.seconds)), words]


def _curve_title(one: RankBatch) -> str:
    return f"batch {one.batch:,} on each rank: time against memory"


def _curve_table(found: RanksResult) -> Cells:
    host = ["host"] if found.has_host else []
    heads = ["memory of each", *host, "FSDP2", "plan", "saves", "FSDP2's policy"]
    return heads, [_curve_row(found, point) for point in found.curve]


def _curve_row(found: RanksResult, point: CurvePoint) -> list[str]:
    policy, plan = point.policy_seconds, point.seconds
    saves = signed(plan / policy - 1.0) if policy and plan else "-"
    times = ["-" if seconds is None else duration(seconds) for seconds in (policy, plan)]
    host = _host_cell(found, point.host_peak)
    return [format_bytes(point.budget), *host, *times, saves, point.policy or "none fits"]


# ── JSON, the page ──────────────────────────────────────────────────────────────────────────────────


def ranks_document(found: RanksResult, subject: Subject) -> dict[str, Any]:
    one = found.fastest
    rate = None if one is None else found.rate(one, one.plan.seconds)
    return {
        "gpu": found.preset.gpu.name,
        "machine": found.preset.name,
        "answer": ranks_answer(found),
        "model": subject.what,
        "optimizer": subject.optimizer,
        "lora": found.adapters,
        "autocast": subject.loop.autocast,
        "attention": subject.loop.attention,
        "ranks": found.peers.ranks,
        "link": {"rate": found.peers.rate, "latency": found.peers.latency},
        "replicas": replicas_document(found.peers.replicas),
        "host": found.machine.host_capacity,
        "budget": found.room.limit,
        "reserve": found.room.reserve,
        "constant": found.room.constant,
        "shares": found.shares,
        "batches": [_batch_document(found, row) for row in sorted(found.batches, key=lambda row: row.batch)],
        "fastest_batch": one and _batch_document(found, one),
        "fastest_batch_by_policy": (best := found.fastest_by_policy) and _batch_document(found, best),
        "plan_is_faster": found.plan_is_faster,
        "curve": [point._asdict() for point in found.curve],
        "tokens_per_sample": found.tokens,
        "price_per_hour": found.price,
        "samples_per_price": None if rate is None else _bought(found, rate),
        "interrupted": found.interrupted,
    }


def _batch_document(found: RanksResult, one: RankBatch) -> dict[str, Any]:
    plan, span = one.plan, found.spans.get(one.batch)
    marked = one is found.fastest
    return {
        "batch": one.batch,
        "budget": plan.budget,
        "device_budget": plan.budget + found.room.constant,
        "fits": plan.figures is not None,
        "unanswered": plan.unanswered and plan.unanswered._asdict(),
        "min_memory": plan.min_memory,
        "time": plan.seconds,
        "peak": plan.figures and plan.figures.peak,
        "host_peak": plan.figures and plan.figures.host_peak,
        "needs": span and span._asdict(),
        "samples_per_second": found.rate(one, plan.seconds),
        "fastest_known": None if plan.figures is None else one.batch not in found.hasty,
        "policies": [
            {
                "policy": row.name,
                "least_budget": row.least,
                "time": row.seconds,
                "samples_per_second": found.rate(one, row.seconds),
                "needs": (there := found.policy_spans.get(row.name)) and there._asdict() if marked else None,
            }
            for row in one.policies
        ],
    }


def _bought(found: RanksResult, rate: float) -> float | None:
    return None if found.price is None else samples_per_price(rate, found.gpus * found.price)


def ranks_sections(found: RanksResult) -> Iterator[Section]:
    one, network = found.fastest, "; ".join(words for _label, words in network_rows(found.peers))
    bars = tuple(
        Bar(
            f"{row.batch:,}", found.rate(row, row.plan.seconds) or 0.0, row is one, found.spans.get(row.batch)
        )
        for row in sorted(found.batches, key=lambda row: row.batch)
        if row.plan.seconds
    )
    hint = f"{network}. Samples per second are of all GPUs. ≤, ≥: from a short search."
    title = f"{found.preset.gpu.name}: {found.gpus:,} GPUs"
    answer = ranks_answer(found)
    yield Section(Table(title, *_batch_table(found), hint), bars, f"{_capital(answer)}.")
    if one is not None:
        yield Section(Table(_capital(_policy_title(one)), *_policy_table(found, one)))
        curves = (
            Curve("FSDP2", [(point.budget, point.policy_seconds) for point in found.curve]),
            Curve("plan", [(point.budget, point.seconds) for point in found.curve]),
        )
        yield Section(Table(_capital(_curve_title(one)), *_curve_table(found)), curves=curves)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
