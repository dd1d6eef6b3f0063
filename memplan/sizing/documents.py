"""Results of sizing as JSON has them (docs/schemas/plan-output.schema.json)."""

from __future__ import annotations

from typing import Any

from ..graphs.machines.networks import replicas_document
from .alternatives import NextSteps
from .answer import cheapest, line_of
from .breakdown import KINDS, Breakdown
from .estimate_range import time_span
from .lengths import ManyLengths
from .result import SizeResult
from .sizing import Sizes
from .subject import Subject
from .trial import BatchTrial


def document_of(sizes: Sizes) -> dict[str, Any]:
    """Return the results on one GPU, on ranks, or on several GPUs."""
    subject, results = sizes.subject, sizes.results
    if not sizes.several:
        return _result(results[0], subject)
    best = cheapest(results)
    return {
        "most_samples_for_the_price": best and best.preset.name,
        "gpus": [_result(found, subject) for found in results],
        "without_a_plan": [
            {"machine": one.preset.name, "ways": [way._asdict() for way in one.ways]} for one in sizes.at_once
        ],
        "interrupted": any(found.interrupted for found in results),
        "not_tried": [*sizes.left],
    }


def _result(found: SizeResult, subject: Subject) -> dict[str, Any]:
    def trial(one: BatchTrial | None, *, listed: bool = True) -> dict[str, Any] | None:
        return one and _trial(one, found, listed=listed)

    document = {
        "gpu": found.preset.gpu.name,
        "machine": found.preset.name,
        "answer": line_of(found),
        "model": subject.what,
        "optimizer": subject.optimizer,
        "lora": found.adapters,
        "quantize": subject.loop.quantize,
        "autocast": subject.loop.autocast,
        "attention": subject.loop.attention,
        "master_weights": subject.loop.master_weights,
        "param_dtype": subject.loop.param_dtype,
        "reduce_dtype": subject.loop.reduce_dtype,
        "expandable_segments": subject.loop.expandable_segments,
        "budget": found.room.limit,
        "reserve": found.room.reserve,
        "constant": found.room.constant,
        "host": found.machine.host_capacity,
        "batches": [trial(one) for one in found.by_batch],
        "fastest_batch": trial(found.fastest),
        "tokens_per_sample": found.tokens,
        "price_per_hour": found.price,
        "samples_per_price": found.samples_per_price(),
        "interrupted": found.interrupted,
    }
    if (peers := found.peers) is not None:
        return document | {
            "ranks": peers.ranks,
            "link": {"rate": peers.rate, "latency": peers.latency},
            "replicas": replicas_document(peers.replicas),
            "shares": found.shares,
            "fastest_batch_by_policy": trial(found.fastest_by_policy),
            "plan_is_faster": found.plan_is_faster,
            "curve": [point._asdict() for point in found.curve],
        }
    return document | {
        "global_batch": subject.loop.total,
        "largest_batch": trial(found.largest),
        "largest_unplanned": trial(found.unplanned),
        "smallest_nearly_fastest": trial(found.advised),
        "next_steps": found.next_steps and _next_document(found.next_steps, found.room.limit),
        "smallest_budget": trial(found.least, listed=False),
        "lengths": found.lengths and _lengths_document(found.lengths),
        "in_pieces": found.in_pieces
        and {
            "smallest_budget": trial(found.in_pieces.least, listed=False),
            "largest_batch": trial(found.in_pieces.largest, listed=False),
        },
        "breakdown": found.parts and _parts_document(found.parts),
        "pinning": trial(found.pinning, listed=False),
    }


def _trial(one: BatchTrial, found: SizeResult, *, listed: bool) -> dict[str, Any]:
    """Return a trial. listed: it is one of the result's batches."""
    figures, span = one.figures, found.spans.get(one.batch) if listed else None
    fits = listed and figures is not None
    document = {
        "batch": one.batch,
        "budget": one.budget,
        "device_budget": one.budget + found.room.constant,
        "fits": figures is not None,
        "unanswered": one.unanswered and one.unanswered._asdict(),
        "min_memory": one.min_memory,
        "time": one.seconds,
        "peak": figures and figures.peak,
        "host_peak": figures and figures.host_peak,
        "needs": span and span._asdict(),
        "samples_per_second": found.rate(one) or None,
        "fastest_known": one.batch not in found.hasty if fits else None,
    }
    if found.peers is not None:
        return document | {"policies": _policies_document(one, found)}
    return document | {
        "gradient_accumulation_steps": one.steps,
        "baseline_peak": one.baseline_figures.peak,
        "baseline_time": one.baseline_seconds,
        "pinned_peak": figures and figures.pinned_peak,
        "least_pinned": figures and figures.least_pinned,
        "disk_peak": figures and figures.disk_peak,
        "overhead": one.overhead,
        "planned": one.batch not in found.as_it_is if fits else None,
        "times": None if one.seconds is None else time_span(one.seconds)._asdict(),
        "tight": found.tight(one.batch) if fits else None,
    }


def _policies_document(one: BatchTrial, found: SizeResult) -> list[dict[str, Any]]:
    # The spans are of the fastest batch alone.
    spans = found.policy_spans if one is found.fastest else {}
    return [
        {
            "policy": row.name,
            "least_budget": row.least,
            "time": row.seconds,
            "samples_per_second": row.seconds and found.rate(one, row.seconds),
            "needs": (span := spans.get(row.name)) and span._asdict(),
        }
        for row in found.policies[one.batch]
    ]


def _lengths_document(found: ManyLengths) -> dict[str, Any]:
    return {**found._asdict(), "ways": [way._asdict() for way in found.ways]}


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
