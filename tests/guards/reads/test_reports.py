"""What a step tells of itself."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import memplan
import pytest
import torch
from five_layers import INPUTS, adamw, loss_of, model, optimized
from memplan.devices.device.cpu import Cpu
from memplan.devices.measuring.measure import Measurement
from memplan.graphs.errors import InputError
from memplan.graphs.machine import Links, Machine
from memplan.graphs.units import format_bytes
from memplan.profiling.profile.profile import measure_program
from memplan.training import progress
from memplan.training.plans import front_end
from memplan.training.plans.training_log import ENOUGH
from memplan.training.progress import Line, ProgressEvent


def test_every_phase_is_told_and_timed() -> None:
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, adamw(module), progress=reported.append, verify=True)
    phases = list(dict.fromkeys(each.phase for each in reported))
    assert phases == ["trace", "measure", "solve", "compare"]
    measured = [each for each in reported if each.phase == "measure" and each.done]
    assert measured[-1].done == measured[-1].total == len(step.plans[0].program.operations)
    step(INPUTS)
    step(INPUTS)
    step(INPUTS[:5])
    trained = [each for each in reported if each.phase == "train"]
    assert [each.done for each in trained] == [1, 2, 3]
    assert all(each.loss is not None and f"loss {each.loss.item():.6g}" in str(each) for each in trained)
    report = step.report()
    assert [plan.shapes["0"] for plan in report.plans] == [(5, 8), (16, 8)]
    assert [plan.iterations for plan in report.plans] == [1, 2]
    assert report.plans[0].setup.keys() == {"trace", "derive", "compare"}
    assert report.plans[1].setup.keys() == {"trace", "measure", "solve", "compare"}
    for plan in report.plans:
        assert all(seconds > 0 for seconds in plan.setup.values())
        assert 0 < plan.predicted_peak <= (plan.budget or 0)
        assert plan.predicted_time > 0
        assert plan.peak is None  # nobody counts on the CPU
    assert report.plans[0].time is None
    assert (report.plans[1].time or 0) > 0
    lines = str(report).splitlines()
    assert lines[3:] == [note for plan in report.plans for note in plan.notes]
    assert "0:16×8" in lines[2]
    assert "trace" in lines[1]


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def uncertain(*given: Any, **more: Any) -> list[Measurement]:
        return [one._replace(doubt=0.4) for one in measure_program(*given, **more)]

    monkeypatch.setattr(front_end, "measure_program", uncertain)
    line = "this machine is busy: times may be 40% off"
    step = optimized(model(), None, progress=Line())
    assert f"memplan: measure, {line}\n" in capsys.readouterr().err
    assert line in step.report().plans[0].notes
    assert line in str(step.report())


@pytest.mark.scripts
def test_a_budget_in_bytes_holds_what_libraries_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = optimized(model(), None, budget="100%").report().plans[0].predicted_peak
    monkeypatch.setattr(Cpu, "constant_bytes", lambda _self: 512)
    assert optimized(model(), None, budget=2 * whole).plan.budget == 2 * whole - 512
    assert optimized(model(), None, budget="100%").plan.budget == whole
    monkeypatch.setattr(Cpu, "constant_bytes", lambda _self: 2 * whole)
    with pytest.raises(InputError, match=r"libraries keep .* B: nothing is left to plan in"):
        optimized(model(), None, budget=2 * whole)


def test_a_plan_is_there_to_be_read_and_saved(tmp_path: Path) -> None:
    module = model()
    step = optimized(module, adamw(module))
    plan = step.plan
    assert (plan.figures.time, plan.figures.peak) == (
        step.report().plans[0].predicted_time,
        step.report().plans[0].predicted_peak,
    )
    plan.save(tmp_path / "new" / "plan")
    graph = memplan.load_graph(tmp_path / "new" / "plan" / "graph.json")
    held = memplan.load_schedule(tmp_path / "new" / "plan" / "schedule.json", graph)
    assert memplan.simulate(graph, held.schedule, budget=plan.budget).figures == plan.figures
    step(INPUTS[:5])
    assert step.plan.graph is not plan.graph
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/plan: can't make the folder: Not a directory"):
        plan.save(tmp_path / "file" / "plan")


def test_a_plan_with_moves_reports_its_host_memory() -> None:
    module = model()
    options = {"machine": Machine(links=Links(1e9, 1e9)), "solver": "l2l", "rollback_on_error": True}
    reported: list[ProgressEvent] = []
    step = optimized(module, adamw(module), progress=reported.append, **options)
    step(INPUTS)
    plan = step.report().plans[0]
    states = 3 * sum(parameter.nbytes for parameter in module.parameters())
    assert plan.host > states
    assert plan.predicted_host > 0
    line = str(reported[-1])
    assert f"device {format_bytes(plan.predicted_peak)} planned" in line  # nobody counts on the CPU
    assert f" of {format_bytes(plan.predicted_host)}" in line
    assert 2**24 < (reported[-1].process or 2**25) < 2**40
    assert "process" in line
    assert "device 1.00 of 2.00 KiB, host 5 B of 1.00 MiB" in str(
        replace(reported[-1], planned=(2048, 2**20), used=(1024, 5))
    )


@pytest.mark.scripts
@pytest.mark.parametrize("fused", [False, True])
def test_updates_on_the_host_without_fused_kernels_are_told_of(fused: bool) -> None:
    """And done as the optimizer does them."""
    made: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    mine, other = model(), model()
    optimizer, baseline = (torch.optim.AdamW(m.parameters(), 0.01, **made) for m in (mine, other))
    reported: list[ProgressEvent] = []
    options = {"machine": Machine(links=Links(1e12, 1e12)), "solver": "zero-offload", "budget": "100%"}
    step = optimized(mine, optimizer, progress=reported.append, **options)
    line = "12 weights are updated on the host: AdamW(…, fused=True) does that"
    assert (line in str(step.report())) == any(line in each.text for each in reported) == (not fused)
    for _ in range(2):
        torch.manual_seed(1)
        step(INPUTS)
        baseline.zero_grad()
        torch.manual_seed(1)
        loss_of(other(INPUTS)).backward()
        baseline.step()
    for name, weight in other.state_dict().items():
        assert torch.equal(mine.state_dict()[name], weight), name


def test_a_time_that_is_not_the_plan_s_is_told_once() -> None:
    module, reported = model(), list[ProgressEvent]()
    step = optimized(module, adamw(module), progress=reported.append)
    book = step._executor.book
    record = next(iter(book._records.values()))
    record.figures = replace(record.figures, time=1e-9)
    for _turn in range(ENOUGH + 5):
        step(INPUTS)
    lines = [str(each) for each in reported if "against the plan's" in each.text]
    assert len(lines) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_true_writes_a_line_where_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    module = model()
    for stream, expected in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        step = optimized(module, adamw(module), progress=True)
        step(INPUTS)
        assert ("memplan: trace" in stream.getvalue()) is expected
        assert ("memplan: train, 1, loss" in stream.getvalue()) is expected
        assert "\n" not in stream.getvalue()
        step._executor.book.note(step.plans[0], "iterations take long")
        assert stream.getvalue().endswith("memplan: train, 1, iterations take long\n") is expected
    with pytest.raises(InputError, match="progress=3: give a function"):
        optimized(module, None, progress=3)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("slow", [True, False])
def test_planning_that_takes_long_is_reported_by_default(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, slow: bool
) -> None:
    """Also while a phase reports nothing, and nothing of training."""

    def slowly(*given: Any, **more: Any) -> list[Measurement]:
        time.sleep(0.3)
        return measure_program(*given, **more)

    module, stream = model(), Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(front_end, "measure_program", slowly)
    for name in ("PATIENCE", "SECONDS_BETWEEN", "SECONDS_BETWEEN_LINES"):
        monkeypatch.setattr(progress, name, 0.1 if slow else 60.0)
    step = optimized(module, adamw(module), progress=None)
    step(INPUTS)
    assert "memplan progress" not in [thread.name for thread in threading.enumerate()]
    *during, last, end = (
        re.split(r"\n|\r\x1b\[2K", stream.getvalue()) if slow else ("", "", stream.getvalue())
    )
    assert end == ""
    if slow:
        assert any(re.fullmatch(r"memplan: planning for .*: measure.*", line) for line in during)
        assert re.fullmatch(
            r"memplan: planned in .* \(trace .*, measure .*\): .* per iteration, .* of .*", last
        )


def test_planning_is_reported_by_the_first_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    for rank in "01":
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setenv("RANK", rank)
        optimized(model(), None, progress=None)
        assert ("planned in" in sys.stderr.getvalue()) is (rank == "0")  # pyright: ignore
