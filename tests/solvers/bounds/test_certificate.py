"""Certificates of solutions: what they claim is true, and stays true or is refused if a number is changed."""

from __future__ import annotations

from random import Random

import pytest
from certified import Certified, certified, changed, false_claims
from exact import optimal_time
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph
from memplan.planner.baseline import baseline
from memplan.planner.certificates import verify
from memplan.solvers.bounds.certificate import check_certifiable
from memplan.solvers.problem import HIGHS
from strategies import random_graph, with_comm
from training_graphs import training
from wide_graphs import exact_budget, wide_graph

REFUSALS = (verify.ClaimError, verify.DocumentError, verify.SubjectError)


def bound_claims(case: Certified) -> list[verify.Claim]:
    return [claim for claim in case.claims() if claim.what.startswith("lower bound")]


def half(graph: Graph, share: float = 0.6) -> int:
    return int(baseline(graph).peak * share)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(40))
def test_claims_about_small_graphs_are_true(number: int) -> None:
    random = Random(f"certificates {number}")
    graph = wide_graph(random)
    case = certified(graph, int(exact_budget(random, graph)))
    if case is None:
        return
    optimum = optimal_time(graph, case.budget)
    assert [*false_claims(case, optimum)] == []
    for _change in range(10):
        try:
            other = case._replace(certificate=changed(case.certificate, random))
            assert [*false_claims(other, optimum)] == []
        except REFUSALS:
            continue


def test_a_bound_in_fractions_is_proven() -> None:
    graph = training(6, seed=1)
    case = certified(graph, half(graph), "search", 0.5)
    assert case is not None
    claims = bound_claims(case)
    proofs = [bound["proof"] for bound in case.certificate["bounds"]]
    assert any(proofs)
    for claim, proof in zip(claims, proofs, strict=True):
        # What the flow does not reach is HiGHS' word, and the answer says so.
        assert not claim.by or (claim.by == HIGHS and "HiGHS, not checked" in claim.verdict)
        assert proof is None or (claim.least or claim.value or 0) > 0
    assert {claim.what: claim.by for claim in case.claims()}["time"] == ""


def test_a_larger_claim_without_a_witness_is_refused() -> None:
    case = certified(chain(8, seed=0), 10**10, "store-all")
    assert case is not None
    case.certificate["bounds"].append({**case.certificate["bounds"][0], "order": "file"})
    assert len(bound_claims(case)) == 2
    case.certificate["bounds"][1]["seconds"] *= 1.001
    with pytest.raises(verify.ClaimError, match="lower bound"):
        case.claims()


def test_ranks_that_communicate_have_none() -> None:
    graph = next(
        graph
        for graph in (with_comm(Random(seed), random_graph(Random(seed)), share=1.0) for seed in range(99))
        if graph.communicates
    )
    with pytest.raises(InputError, match="can have no certificate"):
        check_certifiable(graph)
