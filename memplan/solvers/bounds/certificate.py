"""Certificates of solutions: what proves their lower bounds, for `planner/certificates/verify.py`.

A residency bound in fractions is proven by a maximum flow at its best prices (residency/cuts.py), written in
the graph's own terms: which bytes are kept, what is recomputed, what that needs. All others are stated with
the name of what found them: a tree of branch and bound can't be checked. Each proof is verified before it is
written, so a certificate holds what follows, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np

from ...graphs.errors import InputError
from ...graphs.files.files import graph_digest
from ...graphs.files.machine import machine_to_document
from ...graphs.files.write import graph_to_document
from ...graphs.graph import Graph
from ...graphs.machine import Links, Machine
from ...planner.bounds import backward_once, minimum_memory, minimum_memory_once, time_bound
from ...planner.certificates import verify
from ..candidates import device_limit
from ..problem import Bound, OrderName, Problem, ValidatedSolution
from .lower_bounds import ALL_OPERATIONS, known_residency
from .residency.cuts import Kind, Network, part_of
from .residency.facts import facts_of
from .residency.order import any_order, file_order

MEMPLAN = "memplan"
"""The name of what is computed without a proof that is written down."""
OFFLOADING = "memplan's offloading program"
_METHODS = {"offload": OFFLOADING, "residency": MEMPLAN, ALL_OPERATIONS: MEMPLAN}
"""Names of bounds -> who claims them; others are solvers' names."""


def check_certifiable(graph: Graph) -> None:
    """Raise InputError if schedules of a graph can have no certificate."""
    if graph.communicates:
        raise InputError(
            "schedules of ranks that communicate can have no certificate: leave --certificate out"
        )


def certificate_of(problem: Problem, solution: ValidatedSolution, schedule: Any, seconds: float) -> Any:
    """Return the certificate of a solution, a plan-certificate/1. Raises InputError if it is not covered.

    schedule: its document, as it is written to a file.
    seconds: the most to spend on bounds that are not known yet.
    """
    check_certifiable(problem.graph)
    head = {"format": verify.FORMAT, "subject": verify.subject(schedule)}
    return _certificate(problem, head, solution.bounds, schedule, seconds)


def refusal_certificate(problem: Problem, bounds: Sequence[Bound], seconds: float) -> Any:
    """Return the certificate of a problem without a schedule; None if nothing proves that, in some class.

    bounds: infinite ones, as `InfeasibleError` has them.
    seconds: the most to spend.
    """
    graph, machine = problem.graph, problem.machine or problem.graph.machine or Machine()
    if device_limit(problem) < minimum_memory(graph, machine):
        bounds = [Bound(inf, "minimum memory", "any"), *bounds]
    if not bounds or problem.allow is not None:
        return None
    made_for = {"name": graph.name, "sha256": graph_digest(graph)}
    refused = {"graph": made_for, "machine": machine_to_document(machine)}
    return _certificate(problem, {"format": verify.FORMAT, "refused": refused}, bounds, None, seconds)


def _certificate(
    problem: Problem, head: dict[str, Any], bounds: Sequence[Bound], schedule: Any, seconds: float
) -> Any:
    graph = problem.graph
    minimums = minimum_memory(graph, problem.machine), minimum_memory_once(graph, problem.machine)
    certificate: dict[str, Any] = {
        **head,
        "budget": int(problem.budget),
        "min_memory": {"bytes": minimums[0], "by": MEMPLAN},
        "min_memory_once": {"bytes": minimums[1], "by": MEMPLAN},
        "bounds": [_bound_document(problem, bound, seconds) for bound in bounds],
    }
    document = graph_to_document(graph)
    try:
        claims = verify.verify(schedule, certificate, document)
    except (verify.ClaimError, verify.DocumentError):
        for bound in certificate["bounds"]:
            # A proof that a reader would refuse is left out: the bound is then a claim.
            bound["proof"] = None
        claims = _claims_of(schedule, certificate, document)
    unproven = {claim.what: claim.by for claim in claims}
    for name in ("min_memory", "min_memory_once"):
        certificate[name]["by"] = unproven.get(name, "")
    # The claims of bounds come last, in their order.
    for bound, claim in zip(certificate["bounds"], claims[-len(bounds) :], strict=True):
        bound["by"] = claim.by
    return certificate


def _claims_of(schedule: Any, certificate: Any, graph: Any) -> list[verify.Claim]:
    try:
        return verify.verify(schedule, certificate, graph)
    except (verify.ClaimError, verify.DocumentError) as error:
        raise InputError(f"no certificate can be written: {error}") from None


def _bound_document(problem: Problem, bound: Bound, seconds: float) -> dict[str, Any]:
    return {
        "seconds": None if bound.seconds == inf else bound.seconds,
        "order": bound.order,
        "transfers": bound.transfers,
        "backward_again": bound.backward_again,
        "form": bound.form,
        "by": bound.by or _METHODS.get(bound.name, bound.name),
        "proof": _proof(problem, bound, seconds),
    }


def _proof(problem: Problem, bound: Bound, seconds: float) -> dict[str, Any] | None:
    machine = problem.machine or problem.graph.machine or Machine()
    if (bound.transfers and machine.links != Links()) or bound.seconds <= time_bound(problem.graph):
        return None
    found = known_residency(problem, bound.order, seconds, once=not bound.backward_again)
    if found is None:
        return None
    graph = problem.graph if bound.backward_again else backward_once(problem.graph)
    prices = found.prices
    if found.bound.seconds == inf:
        prices = dict.fromkeys(found.moments, 1.0)
    return flow_proof(graph, device_limit(problem), bound.order, prices, free=found.bound.seconds == inf)


def flow_proof(
    graph: Graph, limit: int, order: OrderName, prices: Mapping[int, float], *, free: bool = False
) -> dict[str, Any] | None:
    """Return a maximum flow at some prices, as rows of the graph's own numbers; None if there is none.

    limit: bytes on the device.
    prices: by operation, of the memory at its moment.
    free: recomputation costs nothing. The flow is that of one moment, and proves that there is no schedule.
    """
    facts = facts_of(graph)
    moment = file_order(graph) if order == "file" else any_order(facts.predecessors)
    parts = [part_of(facts, moment(operation), limit, labelled=True) for operation in prices]
    if not parts or limit <= 0:
        return None
    seconds = sum(facts.seconds) or 1.0
    bits, flows = Network(facts, parts, limit, seconds).flows(np.array([*prices.values()]), free)
    moments: list[dict[str, Any]] = []
    for (operation, price), part, flow in zip(prices.items(), parts, flows, strict=True):
        # A fraction in text: the reader recomputes it exactly.
        exact = Fraction(price) * 2**bits / int(limit)
        assert part.rows is not None  # they were requested
        rows = np.column_stack([part.rows, flow])[flow > 0]
        kinds = {kind: rows[rows[:, 0] == kind, 1:].tolist() for kind in Kind}
        if free:
            kept = sum(amount for _x, producer, amount in kinds[Kind.NEEDS] if producer < 0)
            if kept <= exact * int(part.room):
                continue
            # One moment whose flow exceeds its room is the whole proof.
            moments.clear()
        if len(rows):
            names = {"needs": Kind.NEEDS, "asks": Kind.ASKS, "late": Kind.LATE}
            flow_rows = {name: kinds[kind] for name, kind in names.items()}
            moments.append({"operation": operation, "price": str(exact), **flow_rows})
    return {"unit": str(Fraction(seconds) / 2**bits), "moments": moments} if moments else None
