"""The fuzzer (benchmarks/fuzz.py) finds what is planted, makes it small, and tells what it ran."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fuzz
import fuzzing.worker
from fuzzing.area import Area, Fault, Verdict
from fuzzing.areas import SHARES, area_called
from fuzzing.command_line import faults_of
from fuzzing.shrink import shrunk, without

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plants its faults by fork")


class Planted(Area):
    """Cases are lists of different numbers from 0 to 99; some numbers are faults, each of another kind."""

    name = "readers"
    patience = 1.0

    def make(self, random: Random) -> list[int]:
        return random.sample(range(100), 12)

    def judge(self, case: list[int]) -> Verdict:
        if 96 in case:
            os.abort()
        if 97 in case:
            time.sleep(60)
        if 98 in case:
            raise ValueError("not expected")
        return Verdict([Fault("has 99", str(case))] if 99 in case else [], {"numbers": len(case)})

    def smaller(self, case: list[int]) -> Iterator[list[int]]:
        return without(case)

    def write(self, case: list[int], folder: Path, fault: Fault | None) -> list[str]:
        return [f"echo {case}"]


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, cases: int) -> fuzz.Fuzzer:
    for module in (fuzz, fuzzing.worker):
        monkeypatch.setattr(module, "area_called", lambda _name: Planted())
    fuzzer = fuzz.Fuzzer(["readers"], 5, folder)
    fuzzer.context = multiprocessing.get_context("fork")
    fuzzer.run(2, 280, cases)
    return fuzzer


@pytest.mark.scripts
def test_every_kind_of_planted_fault_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzzer = ran(tmp_path, monkeypatch, 30)
    kinds = {kind for _area, kind in fuzzer.kinds}
    assert kinds == {"has 99", "raises ValueError", "crashed", "does not come back"}
    assert fuzzer.ran["readers"]["cases"] + fuzzer.ran["readers"]["cases that did not come back"] == 30
    written = [path.read_text() for path in tmp_path.glob("*/reproduce.sh")]
    assert any("echo [99]\n" in text for text in written)
    assert all("--only readers --seed 5 --case" in text for text in written)
    fuzzer.report()
    assert "readers: " in capsys.readouterr().out


def test_shrinking_leaves_what_the_fault_needs() -> None:
    case = [*range(40, 60), 99, *range(60, 90)]
    assert shrunk(Planted(), case, Fault("has 99", ""))[0] == [99]


def test_a_case_depends_on_seed_area_and_number_alone() -> None:
    area = Planted()
    cases = [fuzzing.worker.case_of(area, seed, number) for seed in (1, 2) for number in (1, 2)]
    assert len({tuple(case) for case in cases}) == 4
    assert cases[0] == fuzzing.worker.case_of(area, 1, 1)


def test_who_asks_for_a_traceback_gets_one(tmp_path: Path) -> None:
    faults, outcome = faults_of(["partition", "--debug"], tmp_path)
    assert (faults, outcome) == ([], "exit code 2")


@pytest.mark.parametrize("name", SHARES)
def test_every_area_runs_some_cases_without_a_fault(name: str, tmp_path: Path) -> None:
    area: Area = area_called(name)
    if name not in ("solvers", "settings"):  # compile less
        area.warm_up()
    for number in range({"solvers": 0, "settings": 0, "commands": 6}.get(name, 20)):
        case = fuzzing.worker.case_of(area, 1, number)
        assert not area.judge(case).faults
        folder = tmp_path / str(number)
        folder.mkdir()
        assert area.write(case, folder, None)
