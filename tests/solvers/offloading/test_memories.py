"""Machines with more memories than device, host and disk: what solvers do there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.graphs.files.files import save_graph
from memplan.graphs.machine import Link, Links, Machine, Tier
from memplan.instances.models import Transformer
from memplan.instances.transformer import Rates, Training, transformer
from memplan.planner.baseline import baseline
from memplan.planner.simulator.simulate import Figures
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.registry import run as registry

MODEL = Transformer("small", 4, 64, 256, 4, 100, "made up", positions=32, tied=True)
GRAPH = transformer(MODEL, Training(4, 32, granularity="layer"), Rates(1e9, 1e9, 1e8))
PEAK = baseline(GRAPH).peak
THREE = Machine(links=Links(4e7, 4e7, 4e7, 2e7))
FOUR = replace(THREE, disk_name="cxl", deeper=(Tier("archive", None, Link(1e7), Link(1e7)),))

TIMELESS = ("offload-greedy", "offmate", "zero-infinity", "zero-offload", "stronghold", "memferry", "lohan")
"""Solvers whose answer depends on no clock."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", TIMELESS)
def test_a_memory_that_nothing_needs_changes_nothing(solver: str) -> None:
    """The same figures, but for one more peak of 0, or the same refusal."""
    moved = 0
    for share in (3, 5, 7):
        with_three, with_four = (
            solved(solver, Problem(GRAPH, PEAK * share // 10, machine)) for machine in (THREE, FOUR)
        )
        if isinstance(with_three, Figures):
            assert with_four == replace(with_three, deeper_peaks=(0,))
            moved += with_three.host_peak > 0
        else:
            assert with_four == with_three
    assert moved


def solved(solver: str, problem: Problem) -> Figures | str:
    try:
        return registry.solve(solver, problem, bound_seconds=0).figures
    except (InfeasibleError, NotAcceptedError) as refusal:
        return str(refusal)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", ["offload-greedy", "joint", "offmate", "auto"])
def test_solve_check_and_report_with_four_memories(solver: str, tmp_path: Path) -> None:
    graph, schedule, page = (tmp_path / name for name in ("g.json", "s.json", "page.html"))
    save_graph(replace(GRAPH, machine=FOUR), graph)

    def plan(*arguments: str | Path) -> str:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    limits = ("--budget", "40%", "--time-limit", "2", "--bound-time", "1")
    plan("solve", graph, *limits, "--solver", solver, "-o", schedule)
    names = [tier["name"] for tier in json.loads(schedule.read_text())["machine"]["memories"]]
    assert names == ["cxl", "archive"]
    checked = json.loads(plan("check", schedule, "--graph", graph, "--json"))
    assert checked["valid"]
    assert checked["host_peak"] > 0
    plan("report", schedule, "--graph", graph, "-o", page)
    assert page.stat().st_size > 10_000
