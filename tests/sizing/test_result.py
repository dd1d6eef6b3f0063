"""Figures of a result: rates, prices, the fastest of batches and of FSDP2's policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memplan.graphs.machine import Peers
from memplan.graphs.machines.presets import find_preset
from memplan.planner.simulator.simulate import Figures
from memplan.sizing.estimate_range import Span
from memplan.sizing.policies import PolicyFigures
from memplan.sizing.question import Room
from memplan.sizing.result import SizeResult, Spans
from memplan.sizing.trial import BatchTrial, Unanswered

ANY, ROOM = find_preset("rtx3060"), Room(100, 0, 0)
PEERS = Peers(1e9, ranks=4)


def trial(batch: int, seconds: float | None, steps: int = 1, earlier: float = 0.0) -> BatchTrial:
    figures = None if seconds is None else Figures(seconds, 8, 8, 0, 0)
    kept = (Figures(2.0, 20, 20, 0, 0), 1.0)
    return BatchTrial(batch, 10, 11, lambda: kept, figures=figures, steps=steps, earlier=earlier)


def result(*trials: BatchTrial) -> SizeResult:
    return SizeResult(ANY, ROOM, ANY.machine, trials=[*trials])


def policy(name: str, seconds: float | None) -> PolicyFigures:
    return PolicyFigures(name, None, 5, seconds)  # pyright: ignore[reportArgumentType]


def test_an_update_is_all_its_micro_batches() -> None:
    one = trial(3, 2.0, steps=4, earlier=6.0)
    assert (one.samples, one.seconds) == (12, 8.0)
    assert one.baseline_seconds == 3.0
    assert one.overhead == pytest.approx(8 / 3 - 1)
    assert trial(3, None).overhead is None
    assert trial(3, None).seconds is None
    assert one.proven_infeasible  # 11 bytes at least, 10 there
    assert not replace(one, budget=11).proven_infeasible
    assert result(one).rate(one) == pytest.approx(12 / 8)
    assert result(one).rate(one, 3.0) == pytest.approx(4.0)
    assert result(one).rate(trial(3, None)) == 0.0


def test_ranks_and_replicas_train_their_own_batches() -> None:
    found = result(trial(2, 1.0), trial(4, 1.5))
    assert found.gpus == 1
    found.peers = PEERS
    assert found.gpus == 4
    assert found.rate(found.trials[0]) == 8.0
    assert found.advised is found.fastest is found.trials[1]


def test_prices_are_of_an_hour_of_all_gpus() -> None:
    found = result(trial(5, 2.0))
    assert found.samples_per_price() is None
    found.price = 0.5
    assert found.samples_per_price() == pytest.approx(3600 * 2.5 / 0.5)
    assert found.samples_per_price(10.0) == pytest.approx(3600 * 10 / 0.5)
    assert found.samples_per_price(0.0) is None
    found.peers = PEERS
    # Four GPUs train four times as many samples, and cost as much.
    assert found.samples_per_price() == pytest.approx(3600 * 2.5 / 0.5)
    assert replace(result(trial(1, None)), price=1.0).samples_per_price() is None


def test_batches_in_order_and_the_largest_of_each_kind() -> None:
    found = result(trial(8, None), trial(4, 9.0), trial(1, 2.0), trial(2, 4.0))
    assert [one.batch for one in found.by_batch] == [1, 2, 4, 8]
    assert [one.batch for one in found.fitting] == [1, 2, 4]
    assert found.unplanned is None
    found.as_it_is = {1, 2, 8}
    assert found.unplanned is found.trials[3]
    assert found.largest is found.trials[1]
    assert found.fastest is found.trials[2]  # the smaller of two that are as fast
    reason = Unanswered("a reason", fault=False)
    found.trials[0] = replace(found.trials[0], unanswered=reason)
    assert found.unanswered == [reason]


def test_the_fastest_policy_is_the_first_that_fits() -> None:
    found = result(trial(1, 0.9), trial(2, 1.99))
    found.peers = PEERS
    assert found.policy(found.trials[0]) is None
    assert found.fastest_by_policy is None
    assert found.plan_is_faster
    found.policies = {1: (policy("a", 0.5), policy("b", 2.0)), 2: (policy("c", None), policy("d", 2.0))}
    first, second = (found.policy(one) for one in found.trials)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("a", "d")
    assert found.fastest_by_policy is found.trials[0]
    assert found.fastest is found.trials[0]
    assert not found.plan_is_faster
    found.trials[0] = trial(1, 0.4)
    assert found.plan_is_faster
    found.trials[0] = trial(1, 0.4978)  # less than half a percent
    assert not found.plan_is_faster
    assert not result(trial(1, None)).plan_is_faster


def test_a_span_is_computed_once_and_when_it_is_asked_for() -> None:
    spans, asked = Spans(), list[int]()

    def span(high: int) -> Span:
        asked.append(high)
        return Span(1, 2, high)

    assert spans.get(1) is None
    spans.add(1, lambda: span(100))
    assert not asked
    assert spans.get(1) == spans.get(1) == Span(1, 2, 100)
    assert asked == [100]
    spans.add(1, lambda: span(101))
    assert spans.get(1) == Span(1, 2, 101)
    found = replace(result(), spans=spans)
    assert found.tight(1)  # 101 of 100 bytes
    spans.add(1, lambda: span(100))
    assert not found.tight(1)
    assert not found.tight(2)
