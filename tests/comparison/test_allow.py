"""Trials with some techniques alone: no schedule uses another, and solvers that can't obey say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memplan.comparison.trial import answer
from memplan.comparison.trials import Outcome, Trial, contender, instance, row
from memplan.graphs.files.files import load_graph, save_graph
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.budget import parse_budget
from memplan.planner.schedule.file import load_schedule
from memplan.planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from memplan.solvers.allowed import parse_allow
from memplan.solvers.registry import run as registry

WORDS = ("recompute", "offload:activations", "offload:states", "")
FEW = ("search", "joint", "zero-offload", "store-all")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    rate = 2.0**30
    made = with_updates(chain(4), optimizer=ADAMW, when="in-backward", device_rate=rate, host_rate=rate)
    path = tmp_path / "graph.json"
    save_graph(replace(made, machine=Machine(links=Links(d2h=rate, h2d=rate))), path)
    return path


def used(graph: Graph, schedule: Schedule) -> set[str]:
    """Return what a schedule uses: recomputation, transfers of which kinds, updates on the host."""
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    moves = (schedule.verbs == Verb.OFFLOAD) | (schedule.verbs == Verb.PREFETCH)
    kinds = {f"offload:{Kind(k).name.lower()}" for k in graph.tensors.kind[schedule.targets[moves]]}
    found = {"recompute"} if len(np.unique(runs)) < len(runs) else set[str]()
    modes = schedule.wheres[schedule.verbs == Verb.COMPUTE]
    on_host = (
        number != DEFAULT_MODE and graph.operations.modes[o][number - 1].on_host
        for o, number in zip(runs.tolist(), modes.tolist(), strict=True)
    )
    return found | kinds | ({"host-updates"} if any(on_host) else set())


ALLOWED = {
    "recompute": {"recompute"},
    "offload:activations": {"offload:activation"},
    "offload:states": {"offload:optimizer_state"},
    "": set[str](),
}


def check(path: Path, solvers: tuple[str, ...], words: str, budget: str, seconds: float) -> int:
    """Check the row of each solver, and return how many have schedules."""
    on, graph, count = instance(path), load_graph(path), 0
    for solver in solvers:
        kept = path.parent / f"{solver}.json"
        allow = parse_allow(words)
        trial = Trial(on, parse_budget(budget), contender(solver, {}), seconds, kept, allow)
        found = row(trial, answer(trial, graph, 0.0))
        assert found.allow == (words or "nothing")
        assert found.place == (on.sha256, found.budget, found.allow)
        if not found.solved:
            assert found.outcome in (Outcome.INFEASIBLE, Outcome.NOT_ACCEPTED, Outcome.NOT_FOUND), found
            assert found.message
            continue
        count += 1
        assert used(graph, load_schedule(kept, graph).schedule) <= ALLOWED[words], (solver, words)
    return count


@pytest.mark.parametrize("words", WORDS)
def test_no_schedule_uses_what_is_not_allowed(graph: Path, words: str) -> None:
    assert check(graph, FEW, words, "100%", 1.0) >= 1
    assert check(graph, FEW, words, "85%", 1.0) >= (words in ("recompute", "offload:states"))


@pytest.mark.scripts
@pytest.mark.parametrize("words", WORDS)
def test_no_solver_uses_what_is_not_allowed(graph: Path, words: str) -> None:
    solvers = tuple(entry.name for entry in registry.entries() if not entry.name.startswith("fake"))
    assert check(graph, solvers, words, "85%", 2.0) >= (words in ("recompute", "offload:states"))


def test_bounds_without_a_schedule_are_of_the_allowed_techniques(graph: Path) -> None:
    """Without transfers there is no schedule below the resident bytes, so the bound is infinite."""
    on, budget = instance(graph), parse_budget("60%")
    alone = Trial(on, budget, contender("search", {}), 1.0, None, parse_allow("recompute"))
    found = row(alone, answer(alone, load_graph(graph), 5.0))
    assert (found.outcome, found.lower_bound) == (Outcome.INFEASIBLE, float("inf"))
    free = Trial(on, budget, contender("joint", {}), 2.0)
    assert row(free, answer(free, load_graph(graph), 5.0)).solved
    assert alone.key != free.key
    assert alone.place != free.place
