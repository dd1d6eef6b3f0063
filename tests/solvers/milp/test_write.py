"""Programs written to files: HiGHS reads them back, and their optimum is the same."""

from __future__ import annotations

from math import inf
from pathlib import Path
from random import Random

import highspy
import pytest
from memplan.graphs.errors import InputError
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.solvers.milp import solve as milp
from memplan.solvers.milp.model import Model, Program
from memplan.solvers.milp.result import MilpStatus, Settings
from memplan.solvers.offloading.offmate import search
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry


def random_program(random: Random) -> Program:
    """Whole and other columns, some without a limit; rows with one side, two, or none between; an offset."""
    model = Model(offset=random.choice((0.0, -3.5, 1e6)))
    columns = [
        model.column(-random.randint(0, 3), random.choice((3, inf)), cost=random.random(), integer=whole)
        for whole in (True, True, random.random() < 0.5, False)
    ]
    for _ in range(random.randint(0, 4)):
        low = random.uniform(-6, 3)
        high = random.choice((low, low + 2, inf))
        model.row([(column, random.uniform(-3, 3)) for column in columns], low, high)
    return model.program()


def optimum(path: Path) -> float | None:
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    highs.run()
    found = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return highs.getInfo().objective_function_value if found else None


@pytest.mark.parametrize("suffix", ["mps", "lp"])
def test_a_program_read_back_has_the_same_optimum(suffix: str, tmp_path: Path) -> None:
    solved = 0
    for seed in range(60):
        program: Program = random_program(Random(seed))
        path = tmp_path / f"{seed}.{suffix}"
        result = milp.solve(program, Settings(gap=0.0, write=str(path)))
        assert optimum(path) == (None if result.objective is None else pytest.approx(result.objective))
        solved += result.status == MilpStatus.OPTIMAL
    assert solved > 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["checkmate", "rk-checkmate", "rockmate"])
def test_solvers_write_what_they_solve(name: str, tmp_path: Path) -> None:
    """A file that is there stays: the second time there are as many again."""
    graph = chain(5)
    problem = Problem(graph, baseline(graph).peak * 7 // 10)
    write = {"write": str(tmp_path / "m.mps")}
    registry.solve(name, problem, settings=write, bound_seconds=0)
    first = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert tmp_path / "m.mps" in first
    registry.solve(name, problem, settings=write, bound_seconds=0)
    files = list(tmp_path.iterdir())
    assert len(files) == 2 * len(first)
    assert all(path.read_bytes() == data for path, data in first.items())
    assert any(optimum(path) is not None for path in files)


def test_a_program_too_large_for_its_integers_is_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SMALL", 0)
    graph, machine = chain(5), Machine(host_capacity=2**40, links=Links(d2h=1e9, h2d=1e9))
    problem = Problem(graph, baseline(graph).peak * 7 // 10, machine)
    write = {"write": str(tmp_path / "m.mps")}
    registry.solve("offmate", problem, settings=write, bound_seconds=0)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    assert highs.readModel(str(tmp_path / "m.mps")) == highspy.HighsStatus.kOk
    assert highspy.HighsVarType.kInteger in highs.getLp().integrality_


@pytest.mark.parametrize(
    ("path", "says"),
    [("m.txt", "write must end with .mps or .lp, not 'm.txt'"), ("no/m.lp", "write: no: no such folder")],
)
def test_a_path_that_is_none_is_refused_before_the_search(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        Settings(write=path)


def test_a_path_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    long = tmp_path / f"{'x' * 300}.mps"
    with pytest.raises(InputError, match=r"cannot be written: File name too long"):
        milp.solve(random_program(Random(0)), Settings(write=str(long)))
