"""The MILP solvers against enumeration, and what comes of one that lies, crashes, hangs or is interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from math import inf, isfinite
from pathlib import Path
from random import Random

import numpy as np
import pytest
from ctrl_c import ctrl_c
from hypothesis import given, settings
from hypothesis import strategies as st
from memplan.graphs.errors import InputError, MissingPackageError
from memplan.solvers.milp import highs
from memplan.solvers.milp import solve as milp
from memplan.solvers.milp.model import Model, Program
from memplan.solvers.milp.result import BackendError, MilpStatus, Progress, Result, Settings, checked
from memplan.solvers.workers.worker import Pool

CBC = "PULP_CBC_CMD"


def installed(backend: str) -> bool:
    import pulp

    return backend in pulp.listSolvers(onlyAvailable=True)


APART = [
    pytest.param(
        name, marks=pytest.mark.skipif(not installed(pulps_name), reason=f"{name} is not installed here")
    )
    for name, pulps_name in (("gurobi", "GUROBI"), (CBC, CBC))
]


def random_program(random: Random) -> Program:
    """Up to four integers in small ranges, one continuous column, equalities and two-sided rows."""
    model = Model(offset=random.randint(-5, 5))
    columns = [
        model.column(lower := random.randint(-2, 1), lower + random.randint(0, 3), cost=cost, integer=True)
        for cost in (random.randint(-6, 6) for _ in range(random.randint(1, 4)))
    ]
    spare = model.column(0.0, 2.0, cost=random.choice((0.5, 3.0)))
    for _ in range(random.randint(0, 4)):
        entries = [(column, float(random.randint(-4, 4))) for column in columns]
        middle = random.randint(-5, 6)
        if random.random() < 0.25:
            model.row([*entries, (spare, 1.0)], lower=middle, upper=middle)
        else:
            model.row(entries, random.choice((-inf, middle - 3)), random.choice((middle, inf)))
    return model.program()


def optimum(program: Program) -> float:
    """By enumeration of the integers; the last column is the continuous one. ∞: infeasible."""
    best = inf
    ranges = [range(int(low), int(high) + 1) for low, high in zip(program.lower, program.upper, strict=True)]
    for integers in product(*ranges[:-1]):
        x = np.array([*integers, 0.0])
        slope = program.activity(np.eye(len(x))[-1])
        base = program.activity(x)
        low, high = 0.0, 2.0
        for b, s, row_low, row_high in zip(base, slope, program.row_lower, program.row_upper, strict=True):
            if s:
                low, high = max(low, (row_low - b) / s), min(high, (row_high - b) / s)
            elif not row_low - 1e-9 <= b <= row_high + 1e-9:
                high = -inf
        if low <= high:
            best = min(best, program.objective(np.array([*integers, low])))
    return best


def hard_program(items: int = 40, rows: int = 5) -> Program:
    """A market split: find 0/1 values whose weighted sums come as near as possible to half. Hard to prove."""
    random, model = Random(1), Model()
    columns = [model.binary() for _ in range(items)]
    for _ in range(rows):
        weights = [random.randint(0, 99) for _ in columns]
        over, under = (model.column(upper=1e4, cost=1.0) for _ in range(2))
        half = float(sum(weights) // 2)
        weighted = [(column, float(weight)) for column, weight in zip(columns, weights, strict=True)]
        model.row([*weighted, (over, -1.0), (under, 1.0)], half, half)
    return model.program()


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_highs_equals_enumeration(seed: int) -> None:
    program = random_program(Random(seed))
    result, best = milp.solve(program), optimum(program)
    assert (result.status == MilpStatus.INFEASIBLE) == (best == inf)
    if best < inf:
        assert result.status == MilpStatus.OPTIMAL
        assert result.objective == pytest.approx(best)
        assert result.bound == pytest.approx(best, abs=1e-9)
        assert result.bound <= best
        assert result.x is not None
        assert program.objective(result.x) == pytest.approx(best)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("backend", APART)
@pytest.mark.parametrize("seed", range(6))
def test_other_backends_equal_enumeration(backend: str, seed: int) -> None:
    program = random_program(Random(seed))
    result, best = milp.solve(program, Settings(backend)), optimum(program)
    assert (result.status == MilpStatus.INFEASIBLE) == (best == inf)
    if best < inf:
        assert result.objective == pytest.approx(best)
        assert best - 1e-4 <= result.bound <= best


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["highs", *APART])
def test_a_time_limit_gives_the_best_so_far_and_its_bound(backend: str) -> None:
    result = milp.solve(hard_program(), Settings(backend), time_limit=2)
    assert result.status == MilpStatus.FEASIBLE
    assert result.objective is not None
    assert result.bound <= result.objective
    assert isfinite(result.bound) or backend == CBC


@pytest.mark.scripts
@pytest.mark.parametrize("backend", ["highs", *APART[:1]])
def test_a_start_is_completed_and_never_lost(backend: str) -> None:
    program = hard_program()
    first = milp.solve(program, time_limit=2)
    assert first.x is not None
    start = {column: float(first.x[column]) for column in np.flatnonzero(program.integer).tolist()}
    recomputed = milp.solve(program, Settings(backend), time_limit=0.5, start=start)
    assert recomputed.objective is not None
    assert first.objective is not None
    assert recomputed.objective <= first.objective + 1e-6


def test_progress_is_told() -> None:
    reported: list[Progress] = []
    milp.solve(hard_program(), time_limit=2, progress=reported.append)
    assert reported
    assert reported[-1].gap > 0
    assert all(progress.bound <= progress.incumbent for progress in reported)


def test_the_same_program_gives_the_same_answer() -> None:
    program = random_program(Random(7))
    answers = [milp.solve(program, Settings(threads=1)).x for _ in range(3)]
    assert all(np.array_equal(answers[0], x) for x in answers if answers[0] is not None and x is not None)


def test_an_empty_program_is_its_offset() -> None:
    result = milp.solve(Model(offset=3.0).program())
    assert (result.status, result.objective) == (MilpStatus.OPTIMAL, 3.0)


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
@pytest.mark.parametrize("backend", ["highs", *APART[1:]])
def test_ctrl_c_ends_the_search(backend: str) -> None:
    program = hard_program()
    with ctrl_c(2.0):
        result = milp.solve(program, Settings(backend), time_limit=60)
    assert result.interrupted
    assert (result.objective is not None) == (backend == "highs")


def test_gurobis_licence_for_small_models_says_so() -> None:
    gurobipy = pytest.importorskip("gurobipy")
    model = Model()
    for _ in range(2500):
        model.row([(model.binary(cost=-1.0), 1.0)], upper=0.5)
    program = model.program()
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as probe:
            probe.addVars(2500)
            probe.optimize()
    except gurobipy.GurobiError:
        with pytest.raises(BackendError, match=r"^gurobi's licence does not take a model of 2,500 variables"):
            milp.solve(program, Settings("gurobi"))
    else:
        pytest.skip("gurobi has a full licence here")


def test_unknown_and_missing_backends() -> None:
    program = random_program(Random(1))
    with pytest.raises(InputError, match="backend 'simplex' is unknown: highs, gurobi, or one of"):
        milp.solve(program, Settings("simplex"))
    with pytest.raises(MissingPackageError, match="backend XPRESS is not installed here"):
        milp.solve(program, Settings("xpress"))


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"gap": -0.1}, {"gap": float("nan")}, {"seed": -1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


def lie(x: list[float], bound: float = -inf) -> Result:
    """What is made of an answer to: minimise −a − b, a + 2b ≤ 2, a, b binary."""
    model = Model()
    a, b = model.binary(cost=-1.0), model.binary(cost=-1.0)
    model.row([(a, 1.0), (b, 2.0)], upper=2.0)
    return checked(model.program(), Result(MilpStatus.OPTIMAL, -1.0, bound, np.array(x)), "liar")


@pytest.mark.parametrize(
    ("x", "fault"),
    [
        ([1.0, 0.5], "liar gave a fractional answer"),
        ([1.0, 1.0], "liar gave a wrong answer: a constraint is violated by"),
        ([-1.0, 0.0], "liar gave a wrong answer: a variable is outside its bounds by 1"),
        ([0.0, 0.0], "liar gave a wrong answer: it says -1 and it costs 0"),
        ([1.0], "liar gave no value for some of 2 variables"),
        ([float("nan"), 0.0], "liar gave no value for some of 2 variables"),
    ],
)
def test_a_wrong_answer_is_noticed(x: list[float], fault: str) -> None:
    with pytest.raises(BackendError, match=fault):
        lie(x)


def test_a_row_is_as_exact_as_its_terms() -> None:
    """500 a ≤ peak, where a is 1 less 8e-7, as backends may have it, and rounded then."""
    model = Model()
    a, peak = model.binary(), model.column(upper=1000.0, cost=1.0)
    model.row([(a, 500.0), (peak, -1.0)], upper=0.0)

    def reported(peak: float) -> Result:
        return checked(
            model.program(), Result(MilpStatus.OPTIMAL, peak, peak, np.array([1 - 8e-7, peak])), "near"
        )

    assert reported(500 * (1 - 8e-7)).x is not None
    with pytest.raises(BackendError, match="a constraint is violated by"):
        reported(499.0)


DEAF = """
import time
import numpy as np
from memplan.solvers.milp.result import Progress
def solve(call, *arguments):
    if {found}:
        call.report(Progress(1.0, 0.5, 0.1))
        call.report(np.ones(1))
    time.sleep(600)
"""


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """HiGHS as it is in the midst of long work: it does not stop when it is asked to."""

    def install(found: bool) -> None:
        (tmp_path / "deaf.py").write_text(DEAF.format(found=found))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        for function in ("SOLVE", "RELAX"):
            monkeypatch.setattr(highs, function, "deaf:solve")
        monkeypatch.setattr(highs, "WORKERS", Pool("deaf"))
        monkeypatch.setattr("memplan.solvers.workers.process.LAST_SECONDS", 0.2)

    return install


@pytest.mark.parametrize("found", [False, True])
def test_highs_that_does_not_stop_is_ended_and_what_it_found_is_kept(
    found: bool, deaf: Callable[[bool], None]
) -> None:
    deaf(found)
    model = Model()
    model.column(cost=1.0, integer=True)
    left = highs.relax(model.program(), 0.1)
    assert (left.prices, left.ray, left.interrupted) == (None, None, False)
    result = milp.solve(model.program(), time_limit=2.0)
    if found:
        assert (result.status, result.objective) == (MilpStatus.FEASIBLE, 1.0)
        assert result.bound <= 0.5
        assert result.x is not None
        assert result.x.tolist() == [1.0]
    else:
        assert (result.status, result.objective, result.x) == (MilpStatus.UNKNOWN, None, None)


def test_highs_that_crashes_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text("import os\ndef solve(*_): os.abort()")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(highs, "SOLVE", "crashing:solve")
    monkeypatch.setattr(highs, "WORKERS", Pool("crashing"))
    with pytest.raises(BackendError, match=r"^highs crashed: exit status -6$"):
        milp.solve(random_program(Random(1)))


def test_highs_does_not_solve_in_this_process() -> None:
    """The interpreter would abort where one of its threads came back after its end."""
    code = "from memplan.solvers.milp import solve; from memplan.solvers.milp.model import Model\n"
    code += "import sys; solve.solve(Model(offset=1.0).program()); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'memplan.solvers.milp.highs'" in done.stdout
    assert "'memplan.solvers.milp.highs_worker'" not in done.stdout


def test_a_bound_above_the_answer_is_noticed() -> None:
    assert lie([1.0, 1e-7], bound=-1.0).objective == -1.0
    with pytest.raises(BackendError, match=r"liar claims the bound -0\.5 above its answer -1"):
        lie([1.0, 0.0], bound=-0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("time.sleep(60)", "brand does not stop: its limit of 0.5 s is long over"),
        ("os.abort()", "brand crashed: exit status -6"),
        ("raise OSError('no more handles')", "brand crashed: OSError: no more handles"),
        ("os._exit(0)", "brand crashed: exit status 0"),
    ],
)
def test_a_backend_that_breaks_gives_one_line(
    body: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_backend.py").write_text(f"import os, time\ndef solve(*_): {body}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(milp, "PULP", "broken_backend:solve")
    monkeypatch.setattr(milp, "GRACE_SECONDS", 1.5)
    with pytest.raises(BackendError) as raised:
        milp.solve(random_program(Random(1)), Settings("brand"), time_limit=0.5)
    assert str(raised.value) == fault
