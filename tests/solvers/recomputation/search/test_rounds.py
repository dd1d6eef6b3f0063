"""Rounds of annealing: what they report of compiling, and when they end early."""

from __future__ import annotations

import pytest
from memplan.graphs.generators import layered
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import in_default_mode
from memplan.solvers.problem import Options
from memplan.solvers.recomputation.search import rounds
from memplan.solvers.recomputation.search.rounds import Rounds
from memplan.solvers.workers.precompile import COMPILING


class NotLoaded:
    """Compiled code that this process has not loaded."""

    signatures = ()

    def __call__(self, *_given: object) -> None:
        pass


@pytest.mark.parametrize("kept", [True, False])
def test_compiling_is_reported_only_if_the_code_is_not_kept_on_disk(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "anneal", NotLoaded())
    monkeypatch.setattr(rounds, "is_compiled", lambda _function: kept)
    said = list[str]()
    rounds.load(Options(report=said.append))
    assert said == ([] if kept else [COMPILING])


@pytest.mark.parametrize("by_default", [True, False])
def test_rounds_without_a_gain_end_it_unless_the_time_was_requested(
    by_default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, ran = layered(20, width=4), list[int]()
    limit = baseline(graph).peak
    searched = Rounds(graph, limit, 50, 0, Options(60.0, by_default=by_default))
    own = searched._round

    def counted(*given: object) -> None:
        ran.append(len(ran))
        own(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(searched, "_round", counted)
    searched.anneal(in_default_mode(range(len(graph.operations))))  # the baseline fits: it is the fastest
    assert len(ran) == (2 if by_default else len(rounds.ROUNDS))
